"""The kinds of facts a person can tell: how each is stated, asked for and answered."""

from __future__ import annotations

from tools.starter import words
from tools.starter.fact_kind import FactKind, ask, day, items, job, number, pooled
from tools.starter.phrases import phrases

KINDS = (
    FactKind(
        name="name",
        value=pooled(words.NAMES, 0.6),
        clauses=phrases(
            "my name is {v} | I am called {v} | people call me {v} | you can call me {v} | I am {v} | I go "
            "by {v} | my friends call me {v} | my first name is {v} | everybody calls me {v} | I was named "
            "{v} | the name is {v} | call me {v} | my parents named me {v} | this is {v} speaking | they "
            "call me {v} | {v} is my name | I am known as {v} | my name has always been {v} | everyone knows "
            "me as {v} | my colleagues call me {v} | {v} is what they call me | {v} is the name I go by | at "
            "work they call me {v} | my name was and is {v}"
        ),
        questions=ask(
            "my name",
            "What is my name? | Who am I? | What am I called? | How do people call me? | Which name did I "
            "give you? | What do my friends call me? | Tell me who I am. | What did I say my name was? | "
            "Which name do I have? | Which name is mine? | What do people call me? | What is my first name? "
            "| How am I called? | Do you remember what I am called? | Say my name. | By which name do you "
            "know me?",
        ),
        asked=phrases("what my name is | who I am | what I am called"),
        canonical="Your name is {v}.",
        unknown="your name",
        greeting="Nice to meet you, {v}!",
        weight=2.0,
    ),
    FactKind(
        name="favourite",
        keys=words.CATEGORIES,
        made_up_keys=0.1,
        value=pooled((*words.COLOURS, *words.ITEMS), 0.5),
        clauses=phrases(
            "my favourite {k} is {v} | the {k} I like best is {v} | I like {v} best of every {k} | {v} is my "
            "favourite {k} | the best {k} for me is {v} | of every {k}, I prefer {v} | {v} is the {k} I like "
            "best | the {k} I prefer is {v} | I prefer {v} to any other {k} | as for the {k}, I like {v} "
            "best | if I have to choose a {k}, I take {v} | my best {k} is {v} | I always choose {v} as my "
            "{k} | I love {v} more than any other {k} | {v} beats any other {k} | I would choose {v} over "
            "any other {k} | {v} is the best {k} | I rank {v} above any other {k} | I always take {v} if I "
            "need a {k} | {v} is the {k} for me"
        ),
        questions=ask(
            "my favourite {k}",
            "What is my favourite {k}? | Which {k} do I like best? | Which {k} is my favourite? | Which {k} "
            "do I prefer? | What {k} do I like most? | Which {k} is best for me? | Which {k} do I choose? | "
            "Which {k} did I say I like best? | Which {k} do I like most?",
        ),
        asked=phrases("what my favourite {k} is | which {k} I like best | which {k} I prefer"),
        canonical="Your favourite {k} is {v}.",
        unknown="your favourite {k}",
        weight=2.0,
    ),
    FactKind(
        name="companion",
        keys=words.COMPANIONS,
        made_up_keys=0.1,
        value=pooled(words.NAMES, 0.5),
        clauses=phrases(
            "my {k} is called {v} | the name of my {k} is {v} | I have a {k} called {v} | my {k} is named "
            "{v} | {v} is the name of my {k} | I call my {k} {v} | the {k} I have is called {v} | my {k} "
            "goes by {v} | everybody calls my {k} {v} | we named my {k} {v} | my {k}, who is called {v}, is "
            "here | my own {k} is called {v} | {v} is what I call my {k} | {v} is how my {k} is called | "
            "{v}, my {k}, is here | my {k} answers to {v} | I gave my {k} the name {v} | {v} was chosen as a "
            "name for my {k} | the one called {v} is my {k}"
        ),
        questions=ask(
            "the name of my {k}",
            "What is my {k} called? | What is the name of my {k}? | How is my {k} called? | What do I call "
            "my {k}? | Which name does my {k} have? | Who is my {k}? | What name does my {k} have? | Which "
            "name did I give my {k}? | What did I call my {k}? | How is my {k} named? | Say the name of my "
            "{k}. | By which name does my {k} go? | My {k} is called what? | What was my {k} called?",
        ),
        asked=phrases("what my {k} is called | the name of my {k}"),
        canonical="Your {k} is called {v}.",
        unknown="what your {k} is called",
        weight=1.5,
    ),
    FactKind(
        name="callable",
        keys=words.CALLABLES,
        made_up_keys=0.15,
        value=pooled(words.NAMES, 0.5),
        clauses=phrases(
            "the {k} is called {v} | call the {k} {v} | the name of the {k} is {v} | we call the {k} {v} | "
            "the {k} has the name {v} | the {k} is named {v} | {v} is the name of the {k} | they call the "
            "{k} {v} | we named the {k} {v} | the {k} goes by {v} | everybody calls the {k} {v} | the {k} "
            "got the name {v} | the {k} will be called {v} | the {k} bears the name {v} | name the {k} {v} | "
            "I gave the {k} the name {v} | {v} is how the {k} is called | let us call the {k} {v}"
        ),
        questions=ask(
            "the name of the {k}",
            "What is the {k} called? | What is the name of the {k}? | How do we call the {k}? | Which name "
            "does the {k} have? | What name does the {k} have? | What did we call the {k}? | How is the {k} "
            "called? | How is the {k} named? | Say the name of the {k}. | By which name does the {k} go? | "
            "The {k} is called what? | Which name did the {k} get? | What do they call the {k}?",
        ),
        asked=phrases("what the {k} is called | the name of the {k}"),
        canonical="The {k} is called {v}.",
        unknown="what the {k} is called",
    ),
    FactKind(
        name="secret",
        keys=words.SECRETS,
        made_up_keys=0.1,
        value=words.code,
        clauses=phrases(
            "the {k} is {v} | my {k} is {v} | {v} is the {k} | use {v} as the {k} | I set the {k} to {v} | "
            "the {k} should be {v} | we chose {v} as the {k} | the {k} I use is {v} | the {k} was changed "
            "to {v} | our {k} is {v} | I chose {v} as the {k} | as the {k} we use {v} | they gave me the "
            "{k} {v} | the {k} has been set to {v} | the {k} you need is {v}"
        ),
        questions=ask(
            "the {k}",
            "What is the {k}? | Which {k} did I give you? | What is my {k}? | What did I set the {k} to? | "
            "Which {k} should I use? | Which {k} do I need? | What {k} did I tell you? | Which {k} is "
            "right? | What is our {k}? | What did I choose as the {k}? | Which {k} do we use? | Say the "
            "{k}. | What was the {k}? | Look up the {k}. | The {k} is what?",
        ),
        asked=phrases("what the {k} is | the {k} | which {k} to use"),
        canonical="The {k} is {v}.",
        unknown="the {k}",
        weight=2.0,
    ),
    FactKind(
        name="lock",
        keys=words.LOCKS,
        made_up_keys=0.15,
        value=words.code,
        clauses=phrases(
            "the code for the {k} is {v} | the {k} opens with {v} | use {v} to open the {k} | {v} opens the "
            "{k} | the {k} has the code {v} | to open the {k}, type {v} | {v} is the code for the {k} | the "
            "{k} can be opened with {v} | type {v} and the {k} opens | the code of the {k} is {v} | for the "
            "{k} the code is {v} | the {k} needs the code {v} | the {k} is locked with {v} | {v} is what "
            "opens the {k} | the {k} lets you in with {v} | {v} unlocks the {k} | the {k} wants the code {v}"
        ),
        questions=ask(
            "the code for the {k}",
            "What is the code for the {k}? | How do I open the {k}? | Which code opens the {k}? | What "
            "opens the {k}? | Which code does the {k} have? | With what does the {k} open? | How can I open "
            "the {k}? | What do I type to open the {k}? | Which code do I need for the {k}? | What is the "
            "code of the {k}? | How does the {k} open? | Which code is for the {k}? | How do we get into "
            "the {k}?",
        ),
        asked=phrases("how to open the {k} | the code for the {k} | which code opens the {k}"),
        canonical="The code for the {k} is {v}.",
        unknown="the code for the {k}",
        weight=1.5,
    ),
    FactKind(
        name="where",
        keys=words.THINGS,
        made_up_keys=0.15,
        value=pooled(words.PLACES, 0.7),
        clauses=phrases(
            "the {k} is in the {v} | I put the {k} in the {v} | I left the {k} in the {v} | you can find the "
            "{k} in the {v} | the {k} lies in the {v} | the {v} is where I keep the {k} | I keep the {k} in "
            "the {v} | the {k} stays in the {v} | the {k} was left in the {v} | you will find the {k} in the "
            "{v} | in the {v} you find the {k} | the place of the {k} is the {v} | in the {v} there is the "
            "{k} | the {k} stands in the {v} | the {k} has its place in the {v} | somebody left the {k} in "
            "the {v} | the {v} is where the {k} is"
        ),
        questions=ask(
            "the place of the {k}",
            "Where is the {k}? | Where did I put the {k}? | Where can I find the {k}? | In which place is "
            "the {k}? | Where do I keep the {k}? | I am looking for the {k}. Where is it? | Where did I "
            "leave the {k}? | Where is my {k}? | Where did we put the {k}? | Where did I see the {k}? | "
            "Where can the {k} be? | In which place did I leave the {k}? | Where do we keep the {k}? | "
            "Where does the {k} lie? | Where does the {k} stand? | The {k} is where? | Where should I look "
            "for the {k}?",
        ),
        asked=phrases("where the {k} is | where I put the {k} | where to find the {k}"),
        canonical="The {k} is in the {v}.",
        unknown="where the {k} is",
        weight=1.5,
    ),
    FactKind(
        name="state",
        keys=words.STATEFUL,
        made_up_keys=0.1,
        value=pooled(words.ADJECTIVES, 0.8),
        clauses=phrases(
            "the {k} looks {v} | today the {k} looks {v} | the {k} looks {v} at the moment | as far as I can "
            "see the {k} looks {v} | I noticed that the {k} looks {v} | the {k} looks {v} to me | the {k} "
            "looks rather {v} | I think the {k} looks {v} | the {k} looked {v} | the {k} appears {v} | the "
            "{k} seems {v} | the {k} looks {v}, I think | these days the {k} looks {v} | I saw that the {k} "
            "looks {v} | the {k} looks {v} again | the {k} is looking {v} lately"
        ),
        questions=ask(
            "the state of the {k}",
            "How does the {k} look? | In which state is the {k}? | What does the {k} look like? | How is "
            "the {k}? | What is the {k} like? | Tell me how the {k} looks. | What did I say about how the "
            "{k} looks? | How did the {k} look? | Which state is the {k} in? | How does the {k} seem? | How "
            "does the {k} appear?",
        ),
        asked=phrases("how the {k} looks | what the {k} looks like"),
        canonical="The {k} looks {v}.",
        unknown="how the {k} looks",
        weight=0.7,
    ),
    FactKind(
        name="event",
        keys=words.EVENTS,
        made_up_keys=0.1,
        value=day,
        clauses=phrases(
            "the {k} is on {v} | the {k} takes place on {v} | we have a {k} on {v} | on {v} there is a {k} | "
            "the {k} was set for {v} | the date of the {k} is {v} | the {k} happens on {v} | the {k} is "
            "planned for {v} | there is a {k} on {v} | they moved the {k} to {v} | {v} is the day of the {k} "
            "| the {k} falls on {v} | we agreed on {v} for the {k} | the {k} is held on {v} | {v} is when "
            "the {k} is | the {k} was moved to {v} | the {k} is going to be on {v}"
        ),
        questions=ask(
            "the date of the {k}",
            "When is the {k}? | On which day is the {k}? | When does the {k} take place? | What day is the "
            "{k}? | When do we have the {k}? | When does the {k} happen? | Which day is the {k} on? | For "
            "when is the {k} planned? | The {k} is when? | When is there a {k}?",
        ),
        asked=phrases("when the {k} is | on which day the {k} is"),
        canonical="The {k} is on {v}.",
        unknown="when the {k} is",
    ),
    FactKind(
        name="count",
        keys=words.COUNTABLES,
        made_up_keys=0.0,
        value=number(2, 60),
        clauses=phrases(
            "I have {v} {k} | I own {v} {k} | there are {v} {k} in my home | the number of my {k} is {v} | I "
            "counted my {k} and there are {v} | {v} {k} are mine | {v} {k} belong to me | in total I have "
            "{v} {k} | I have got {v} {k} | at home I have {v} {k} | as for {k}, I have {v} | all in all "
            "there are {v} {k} in my home | the {k} I own are {v} in number | my {k} are {v} in all | when I "
            "count my {k}, I get {v}"
        ),
        questions=ask(
            "the number of my {k}",
            "How many {k} do I have? | How many {k} do I own? | How many {k} are mine? | How many {k} are "
            "there in my home? | How many {k} have I got? | How many {k} do I keep? | How many {k} belong "
            "to me? | How many {k} did I count? | What number of {k} do I have? | How many {k} did I say I "
            "have?",
        ),
        asked=phrases("how many {k} I have | how many {k} I own"),
        canonical="The number of your {k} is {v}.",
        unknown="how many {k} you have",
    ),
    FactKind(
        name="home",
        value=pooled(words.CITIES, 0.6),
        clauses=phrases(
            "I live in {v} | my home is in {v} | I am from {v} | I moved to {v} | my home town is {v} | my "
            "house is in {v} | I am living in {v} | my flat is in {v} | I have a home in {v} | {v} is where "
            "I live | {v} is my home | I settled in {v} | the city I live in is {v} | I stay in {v} | the "
            "place where I live is {v} | I come from {v} | home for me is {v} | the town I live in is {v} | "
            "{v} is the place I come from"
        ),
        questions=ask(
            "my home town",
            "Where do I live? | Which city do I live in? | Where is my home? | Where am I from? | In which "
            "city is my home? | Which town do I live in? | What is my city? | In which city do I live? | "
            "Which city is my home? | Where did I say I live? | Which place do I live in? | Where is my "
            "house? | Where is my flat? | I live where?",
        ),
        asked=phrases("where I live | which city I live in | where my home is"),
        canonical="You live in {v}.",
        unknown="where you live",
    ),
    FactKind(
        name="job",
        value=job,
        clauses=phrases(
            "I work as {v} | I am {v} by profession | I earn my money as {v} | my job is to be {v} | I have "
            "a job as {v} | I am employed as {v} | I am {v} | I have been working as {v} | my profession is "
            "that of {v} | they hired me as {v} | I make a living as {v} | I became {v} | I found work as "
            "{v} | I earn my living as {v} | I was trained to be {v} | the job I have is that of {v}"
        ),
        questions=ask(
            "my job",
            "What is my job? | What do I work as? | What is my profession? | What do I do for a living? | "
            "Which job do I have? | Which profession do I have? | As what do I work? | What work do I do? | "
            "How do I earn my money? | What did I say my job is? | What am I by profession? | Which work do "
            "I do? | What do I do at work?",
        ),
        asked=phrases("what my job is | what I work as | what I do for a living"),
        canonical="You work as {v}.",
        unknown="what you work as",
    ),
    FactKind(
        name="colour",
        keys=words.OWNED,
        made_up_keys=0.1,
        value=pooled(words.COLOURS, 0.85),
        clauses=phrases(
            "my {k} is {v} | the colour of my {k} is {v} | I painted my {k} {v} | I have a {v} {k} | my {k} "
            "has the colour {v} | the {k} I own is {v} | I own a {v} {k} | {v} is the colour of my {k} | my "
            "{k} has a {v} colour | someone painted my {k} {v} | I bought a {v} {k} | my own {k} is {v} | "
            "as for colour, my {k} is {v} | my {k} was painted {v}"
        ),
        questions=ask(
            "the colour of my {k}",
            "What colour is my {k}? | Which colour does my {k} have? | What is the colour of my {k}? | "
            "Which colour is my {k}? | Which colour is the {k} I own? | What colour did I paint my {k}? | "
            "In which colour is my {k}? | What colour does my {k} have? | The colour of my {k} is what? | "
            "My {k} has which colour?",
        ),
        asked=phrases("what colour my {k} is | which colour my {k} has"),
        canonical="Your {k} is {v}.",
        unknown="what colour your {k} is",
    ),
    FactKind(
        name="dislike",
        value=pooled(words.PLURAL_DISLIKES, 0.6),
        clauses=phrases(
            "I do not like {v} | I hate {v} | I cannot stand {v} | I dislike {v} | I try to avoid {v} | what "
            "I do not like is {v} | I do not enjoy {v} | I am no friend of {v} | I do not care for {v} | {v} "
            "is what I hate | I keep away from {v}"
        ),
        questions=ask(
            "the thing I do not like",
            "What do I not like? | What do I dislike? | What do I hate? | Which thing can I not stand? | "
            "What do I try to avoid? | What can I not stand? | What do I avoid? | What is it that I do not "
            "like? | Which thing do I hate? | What did I say I do not like? | What do I not enjoy? | Which "
            "thing do I dislike?",
        ),
        asked=phrases("what I do not like | what I dislike | what I hate"),
        canonical="You do not like {v}.",
        unknown="what you do not like",
        weight=0.7,
    ),
    FactKind(
        name="list",
        keys=words.LISTS,
        made_up_keys=0.1,
        value=items,
        clauses=phrases(
            "my {k} list is {v} | my {k} list contains {v} | on my {k} list there are {v} | I need {v} on "
            "my {k} list | please put {v} on my {k} list | the {k} list has {v} | the {k} list contains {v} "
            "| I wrote {v} on my {k} list | add {v} to my {k} list | my {k} list says {v} | here is my {k} "
            "list: {v} | for my {k} list I have {v} | {v} are on my {k} list | I put {v} on my {k} list"
        ),
        questions=ask(
            "my {k} list",
            "What is on my {k} list? | What does my {k} list contain? | Which things are on my {k} list? | "
            "What did I put on my {k} list? | What did I write on my {k} list? | What stands on my {k} "
            "list? | Read my {k} list. | Which items are on my {k} list? | Show me my {k} list. | What does "
            "my {k} list say? | Read out my {k} list. | Say what is on my {k} list.",
        ),
        asked=phrases("what is on my {k} list | what my {k} list contains"),
        canonical="On your {k} list: {v}.",
        unknown="what is on your {k} list",
    ),
    FactKind(
        name="value",
        made_up_keys=1.0,
        keys=words.ITEMS,
        value=words.code,
        clauses=phrases(
            "the value of {k} is {v} | {k} = {v} | {k} is equal to {v} | set {k} to {v} | {k} has the value "
            "{v} | let {k} be {v} | {k} equals {v} | {k} is set to {v} | {v} is the value of {k} | the {k} "
            "value is {v} | I gave {k} the value {v} | {v} is what {k} holds | {k} comes to {v}"
        ),
        questions=ask(
            "the value of {k}",
            "What is the value of {k}? | Which value does {k} have? | What is {k} equal to? | What did I "
            "set {k} to? | What does {k} equal? | What is {k} set to? | Which value did I give {k}? | What "
            "does {k} stand for? | What value does {k} hold? | {k} equals what?",
        ),
        asked=phrases("the value of {k} | which value {k} has | what {k} is equal to"),
        canonical="The value of {k} is {v}.",
        unknown="the value of {k}",
        weight=1.5,
    ),
    FactKind(
        name="age",
        value=number(5, 99),
        clauses=phrases(
            "I am {v} years old | my age is {v} | I turned {v} this year | I have been alive for {v} years | "
            "I am {v} | at the moment I am {v} years old | {v} is my age | I reached the age of {v} | I "
            "became {v} last month | I was {v} on my last birthday"
        ),
        questions=ask(
            "my age",
            "How old am I? | What is my age? | How many years old am I? | What age am I? | How many years "
            "have I lived? | Which age do I have? | Tell me how old I am. | How old did I say I am? | What "
            "age did I say? | I am how old? | Which age did I reach?",
        ),
        asked=phrases("how old I am | my age"),
        canonical="You are {v} years old.",
        unknown="how old you are",
        weight=0.7,
    ),
    FactKind(
        name="instrument",
        value=pooled(words.INSTRUMENTS, 0.7),
        clauses=phrases(
            "I play the {v} | I can play the {v} | I am learning to play the {v} | my instrument is the {v} "
            "| I play the {v} in a band | I have played the {v} for years | I know how to play the {v} | at "
            "home I play the {v} | the {v} is the instrument I play | the {v} is what I play | I have learnt "
            "to play the {v} | I was taught to play the {v} | I want to get better at the {v} | I started to "
            "play the {v}"
        ),
        questions=ask(
            "my instrument",
            "Which instrument do I play? | What do I play? | What instrument is mine? | Which instrument "
            "did I say I play? | On what do I play? | What is my instrument called? | Which instrument is "
            "mine? | What instrument do I play? | Which instrument can I play? | What did I learn to play?",
        ),
        asked=phrases("which instrument I play | what I play"),
        canonical="You play the {v}.",
        unknown="which instrument you play",
        weight=0.7,
    ),
    FactKind(
        name="language",
        value=pooled(words.LANGUAGES, 0.7),
        clauses=phrases(
            "I speak {v} | I can speak {v} | the language I speak is {v} | I grew up speaking {v} | I talk "
            "in {v} | at home I speak {v} | my language is {v} | I know how to speak {v} | we speak {v} at "
            "home | I was raised speaking {v} | I have learnt to speak {v} | my mother tongue is {v} | the "
            "language of my family is {v} | {v} is what I speak | I speak {v} at work"
        ),
        questions=ask(
            "the language I speak",
            "Which language do I speak? | What language do I speak? | What do I speak? | In which language "
            "do I speak? | Which language did I say I speak? | Which language can I speak? | What is my "
            "language? | Which language do I know?",
        ),
        asked=phrases("which language I speak | what I speak"),
        canonical="You speak {v}.",
        unknown="which language you speak",
        weight=0.7,
    ),
)
KIND_BY_NAME = {kind.name: kind for kind in KINDS}
