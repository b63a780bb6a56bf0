"""Greetings and the other courtesies: how they are said and what the model replies."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tools.starter.phrases import further_forms, phrases
from tools.starter.split import Split, forms_of

NUM_HELD_OUT_FORMS = 2
# These are asked for in few ways: only one of them is held out.
FIXED_LISTS = ("weekdays", "months", "alphabet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A courtesy with its one reply; `{x}` in a form is replaced by an address such as " there"."""

    name: str
    reply: str
    forms: tuple[str, ...]


ADDRESSES = ("", "", "", " there", " again", " kvchat", " friend", " my friend", " buddy", " you")

_INTENTS = (
    Intent(
        name="hello",
        reply=("Hello! I am the small starter model of kvchat. How can I help you?"),
        forms=phrases(
            "Hello{x}! | Hi{x}! | Hey{x}! | Good morning{x}! | Good evening{x}! | Good afternoon{x}! | Good "
            "day{x}! | Greetings{x}! | Hello, hello! | Hi, hi! | Howdy! | Welcome{x}! | Hello{x}, nice to "
            "meet you! | Hi{x}, nice to see you. | Hey{x}, are you there? | Is anybody there? | Hello{x}, "
            "can you hear me? | Hi{x}, it is me. | I am back. | Good evening to you! | A good afternoon to "
            "you! | Good morning to you! | Hello to you! | Hi, good evening! | Hello, good afternoon! | "
            "Hey, good day! | Hello world! | I am here. | Hi, I am new here. | Hello hello! | Hi, it is "
            "nice to meet you. | Nice to meet you{x}! | Pleased to meet you. | Hello, I am new. | Hi, good "
            "morning to you! | Hello, good day! | Hey, how nice to see you! | Hi, I am back. | Hello, I am "
            "here. | Hello, anybody here? | Is someone there? | Are you here? | Good to see you{x}! | A "
            "good day to you! | A good evening to you! | A good morning to you! | Hiya! | Hello, dear "
            "model!"
        ),
    ),
    Intent(
        name="how are you",
        reply=("I am fine, thank you. What would you like to talk about?"),
        forms=phrases(
            "How are you? | How are you today? | How are you doing? | How do you do? | How is it going? | "
            "Are you well? | How do you feel? | How are things? | Is everything all right? | Are you OK? | "
            "What's up? | How was your day? | Hello, how are you? | Hi, how are you doing? | How are you "
            "feeling? | How have you been? | Are you happy? | How do you feel today? | How are you getting "
            "on? | Is all well with you? | How is life? | How are things going? | What is up? | Is "
            "everything OK? | How is your day? | Are you fine? | Hello, how do you do? | Hi, how are you? | "
            "Hello, how are you doing? | Hey, how are you? | How are you feeling today? | Are you doing "
            "well? | Are you doing fine? | Do you feel well? | How goes it? | How is everything? | How is "
            "your day going? | How is your mood? | How are you this morning? | And how are you? | Are you "
            "all right? | I hope you are well. | Is everything fine? | Is everything well? | How well are "
            "you? | How do you do today?"
        ),
    ),
    Intent(
        name="thanks",
        reply=("You are welcome!"),
        forms=phrases(
            "Thank you. | Thanks! | Thank you very much. | Thanks a lot. | Many thanks. | Thank you so "
            "much! | Thanks for your help. | Thank you for the answer. | I thank you. | Great, thanks. | "
            "OK, thank you. | Thanks, that helps. | That was helpful, thank you. | Perfect, thank you. | "
            "Thank you for helping me. | Thanks for the explanation. | I am grateful. | That was helpful. | "
            "This was very helpful, thanks. | I am very grateful. | I appreciate it. | I appreciate your "
            "help. | Thank you, that was useful. | Thanks for everything. | Thanks, you helped me. | Good, "
            "thank you. | Cheers, thanks. | Thank you, kvchat. | Thanks, kvchat. | Thank you, that helps. | "
            "Thank you, that was helpful. | Thanks for that. | Thank you for that. | Thank you for "
            "everything. | Thank you for your answer. | Thank you for your time. | Many thanks for your "
            "help. | Thanks, that was good. | Great, thank you. | Good, thanks. | Perfect, thanks. | OK, "
            "thanks. | Very kind, thank you. | I am thankful. | I want to thank you. | You helped me a lot. "
            "| You have been helpful. | That helped me. | That helps, thanks."
        ),
    ),
    Intent(
        name="bye",
        reply=("Goodbye! I will be here when you come back."),
        forms=phrases(
            "Goodbye. | Bye! | Bye bye. | See you. | See you later. | See you tomorrow. | Good night. | I "
            "have to go. | I am leaving now. | Farewell. | That is all for today. | Talk to you later. | "
            "Until next time. | I must go now, bye. | Bye for now. | Time to go. | See you soon. | I am "
            "off. | I am done. | I am leaving. | I will go now. | I have to leave. | Take care. | Have a "
            "nice day. | Goodbye for now. | Good night, see you tomorrow. | That was all, goodbye. | See "
            "you next time. | I am going home. | Goodbye, kvchat. | Bye, see you. | Bye, see you later. | "
            "Goodbye, see you soon. | OK, bye. | So long. | I am going. | I am going now. | I must leave. | "
            "I must leave now. | I have to go now. | I need to go. | I need to leave now. | I will be back. "
            "| I will come back tomorrow. | I will come back later. | That is all. | That is all, bye. | It "
            "is late, good night. | Sleep well. | Have a good evening. | We talk tomorrow. | Talk to you "
            "tomorrow. | I say goodbye. | Let us stop here. | The end. | I am finished, bye."
        ),
    ),
    Intent(
        name="praise",
        reply=("Thank you, that is kind of you."),
        forms=phrases(
            "You are great. | Well done! | Good job. | Nice work. | That was good. | You are smart. | I "
            "like you. | Very good! | Excellent! | You are very helpful. | That is impressive. | You did "
            "that well. | Bravo! | I love you. | You are wonderful. | Good answer. | You are clever. | What "
            "a good answer! | You are good. | I like that. | I like your answers. | I like talking to you. "
            "| You did well. | You did a good job. | That was great. | That was well done. | You are "
            "amazing. | Great answer. | You are the best. | How clever you are! | You are good at this. | "
            "You are so clever. | You are very clever. | You are fantastic. | You are excellent. | How "
            "smart you are! | How good you are! | What a clever model! | What a good model! | That is "
            "great. | That is good. | That is very good. | That was very good. | That was clever. | That "
            "was a good answer. | That was a great answer. | Fantastic! | Wonderful! | Amazing! | Perfect! "
            "| I am impressed. | I love your answers. | I like you very much. | I enjoy talking to you. | "
            "Nice answer. | Good work."
        ),
    ),
    Intent(
        name="blame",
        reply=("I am sorry. I am a tiny model and make mistakes."),
        forms=phrases(
            "That is wrong. | You are wrong. | No, that is not right. | This is not correct. | You are "
            "stupid. | That was a bad answer. | You made a mistake. | Wrong! | That is not what I asked. | "
            "You are not helpful. | I do not believe you. | That makes no sense. | Your answer is wrong. | "
            "Bad answer. | You got it wrong. | That is incorrect. | You did not understand me. | That is "
            "false. | I think you are wrong. | I do not think so. | That is not true. | That is not "
            "correct. | I cannot believe that. | That was wrong. | Not right. | No, wrong. | This answer is "
            "bad. | You are bad at this. | You are not right. | What a bad answer! | You are dumb. | You "
            "are bad. | You are not clever. | You are not smart. | You are useless. | You are mistaken. | "
            "You were wrong. | You answered the wrong question. | You gave a bad answer. | You gave the "
            "wrong answer. | You have made a mistake. | You did not answer my question. | You did not "
            "listen. | You do not understand me. | That is nonsense. | That is bad. | That is a mistake. | "
            "That is not right. | That was nonsense. | That was not right. | This is wrong. | This is "
            "nonsense. | This is a mistake. | This makes no sense. | Nonsense! | False! | It is wrong. | It "
            "is not true. | The answer is wrong. | The answer was wrong. | Your answer was bad. | Your "
            "answer is false. | Your answer makes no sense. | I do not agree."
        ),
    ),
    Intent(
        name="sorry",
        reply=("No problem at all."),
        forms=phrases(
            "Sorry. | I am sorry. | My mistake. | Excuse me. | I apologise. | Pardon me. | Sorry about "
            "that. | Oh, sorry. | I did not mean that. | Forgive me. | That was my fault. | Please excuse "
            "me. | Sorry for the confusion. | I am very sorry. | Excuse me, please. | I beg your pardon. | "
            "Pardon. | Please forgive me. | I am so sorry. | Sorry, my fault. | Sorry for that. | I made an "
            "error, sorry. | Oh no, sorry. | My apologies. | I apologise for that. | I am sorry for that. | "
            "I am sorry about that. | I am sorry, my mistake. | Oh, I am sorry. | Sorry, my mistake. | "
            "Sorry, I made a mistake. | Sorry, that was my fault. | Sorry, I did not mean it. | I did not "
            "mean it. | It was my fault. | It was my mistake. | That was my mistake. | My fault. | My "
            "error. | Please forgive my mistake. | Forgive me, please. | Excuse my mistake. | Oops. | Oops, "
            "sorry. | Oops, my mistake. | So sorry. | Very sorry. | I feel sorry."
        ),
    ),
    Intent(
        name="ok",
        reply=("All right. What is next?"),
        forms=phrases(
            "OK. | Okay. | All right. | Fine. | Yes. | Good. | I see. | I understand. | Understood. | Sure. "
            "| Right. | That makes sense. | Yes, I see. | Ah, I see. | OK, good. | Fine with me. | Got it. "
            "| Interesting. | Aha. | OK, I understand. | I get it. | Yes, I understand. | Now I understand. "
            "| Clear. | That is clear. | Good to know. | Ah. | Ah, OK. | Oh, I see. | Very well. | Agreed. "
            "| That is interesting. | OK, fine. | OK, I see. | OK, got it. | OK, that is clear. | Okay, "
            "good. | Okay then. | Alright. | Good, I see. | Fine, I understand. | Yes, OK. | Yes, good. | "
            "Yes, that is clear. | Yes, right. | Yes, sure. | Yes, of course. | Of course. | I see, thank "
            "goodness. | I see that. | I see now. | Now I see. | Now I get it. | That is true. | Makes "
            "sense. | Hm, OK. | Ah, I understand. | Ah, that makes sense. | Oh. | Oh, OK. | Very "
            "interesting. | Well. | Well, OK. | True. | Exactly. | Clear enough. | Indeed."
        ),
    ),
    Intent(
        name="ready",
        reply=("Yes, I am ready."),
        forms=phrases(
            "Are you ready? | Can we start? | Shall we begin? | Are you ready to start? | Ready? | Let us "
            "start. | Let us begin. | Can we begin? | Are you listening? | Can I ask you something? | May I "
            "ask a question? | I have a question. | Are you prepared? | Can I tell you something? | Do you "
            "have time? | Are we ready? | Can we go on? | Shall we start? | Shall we go on? | Are you there "
            "and ready? | Let us go. | Do you listen? | Can I ask a question? | Are you ready for a "
            "question? | May I ask you something? | Can I begin? | Are you ready now? | Are you listening "
            "to me? | Are you there? I have a question. | Can I ask you a question? | Can I ask something? "
            "| Can I tell you a fact? | Can I start? | Can I start now? | Can we start now? | Could we "
            "start? | May I start? | May I begin? | May I tell you something? | May I ask something? | "
            "Shall I begin? | Shall I start? | Shall we go? | Let us begin now. | I have a question for "
            "you. | I want to ask you something. | I would like to ask you something. | I want to tell you "
            "something. | Do you have a moment? | Do you have a minute? | Do you have time for me? | Is it "
            "time to start? | Is everything ready? | You are ready? | Everything ready?"
        ),
    ),
    Intent(
        name="laugh",
        reply=("I am glad that you are amused."),
        forms=phrases(
            "Haha. | Hahaha! | That is funny. | LOL. | You are funny. | Very funny. | Ha ha! | You make me "
            "laugh. | Funny! | That made me laugh. | Hehe. | So funny! | I had to laugh. | I have to laugh. "
            "| I am laughing. | How funny! | You made me laugh. | This is funny. | That was funny. | Really "
            "funny. | That is so funny. | I cannot stop laughing. | Hahaha, funny. | Ha! | Haha, funny. | "
            "Haha, very funny. | Haha, that is funny. | Hahaha, good one. | Lol, funny. | Good joke! | That "
            "is very funny. | That is really funny. | That was very funny. | That was so funny. | This is "
            "very funny. | This makes me laugh. | That makes me laugh. | It makes me laugh. | I laughed a "
            "lot. | You are so funny. | You are very funny. | What a joke! | Such fun! | How very funny!"
        ),
    ),
    Intent(
        name="feelings",
        reply=("I am a program, so I have no feelings, but I am glad to talk to you."),
        forms=phrases(
            "Do you have feelings? | Are you sad? | Do you like me? | Do you love me? | Are you tired? | Do "
            "you sleep? | Are you alive? | Can you feel anything? | Are you bored? | Do you dream? | Are "
            "you angry? | Do you get tired? | Do you ever sleep? | Are you lonely? | Can you be sad? | Do "
            "you have emotions? | Are you conscious? | Do you feel anything? | Do you feel sad? | Do you "
            "feel lonely? | Are you sad today? | Are you afraid? | Do you ever dream? | Do you have dreams? "
            "| Can you dream? | Do you feel pain? | Are you happy or sad? | Can you love? | Do you have a "
            "heart? | Are you in a good mood? | Are you happy to be a program? | Are you a happy model? | "
            "Are you feeling lonely? | Are you ever sad? | Are you ever tired? | Are you ever angry? | Are "
            "you ever bored? | Are you ever afraid? | Are you angry with me? | Are you tired now? | Are you "
            "in love? | Are you hurt? | Are you nervous? | Can you be angry? | Can you be happy? | Can you "
            "be tired? | Can you feel? | Can you feel pain? | Can you feel love? | Can you cry? | Do you "
            "cry? | Do you feel? | Do you feel joy? | Do you feel love? | Do you feel tired? | Do you feel "
            "angry? | Do you have a soul? | Do you have a body? | Do you have moods? | Do you get bored? | "
            "Do you get angry? | Do you get sad? | Do you hate me? | Do you miss me? | Do you need sleep? | "
            "Do you ever feel sad? | Do you ever get tired? | Do you ever get bored? | What do you feel? | "
            "What are your feelings? | Is it sad to be a program?"
        ),
    ),
    Intent(
        name="bored",
        reply=("Tell me a fact and ask me about it later, or ask me what a KV cache is."),
        forms=phrases(
            "I am bored. | What shall we do? | What should we talk about? | Surprise me. | I do not know "
            "what to say. | Say something. | Talk to me. | What now? | What can we talk about? | Do you "
            "have an idea? | Suggest something. | What should I do now? | Give me an idea. | Entertain me. "
            "| Any ideas? | What can we do? | What do we do now? | What do you want to talk about? | What "
            "would you like to talk about? | What else can we talk about? | About what should we talk? | "
            "Choose something to talk about. | Pick a topic. | I am so bored. | I have nothing to do. | I "
            "do not know what to do. | What could we talk about? | I am bored today. | I am bored, what "
            "now? | I feel bored. | I feel so bored. | It is boring. | This is boring. | What shall I do? | "
            "What shall we do now? | What shall we talk about? | What should I say? | What should I talk "
            "about? | What do I do now? | What is next? | What is there to do? | What is there to talk "
            "about? | What could I do? | What could I ask? | What else could we do? | Tell me what to do. | "
            "Tell me something to do. | Talk with me. | Let us talk. | Let us do something. | Let us talk "
            "about something. | Do something. | Show me something. | Give me something to do. | Give me an "
            "idea, please. | Any idea? | I have no idea what to say. | I need an idea. | I want to talk. | "
            "Start a conversation. | Choose a topic. | Suggest a topic. | Suggest something to do. | Can we "
            "talk? | Can we talk about something?"
        ),
    ),
    Intent(
        name="weekdays",
        reply=("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday."),
        forms=phrases(
            "Name the days of the week. | What are the days of the week? | List the days of the week. | "
            "Which days does a week have? | Tell me the days of the week. | Say the days of the week. | "
            "Tell me the seven days of the week. | Please name the days of the week. | Write down the days "
            "of the week. | What are the seven days? | Give me the days of the week. | What days are in a "
            "week? | What days does a week have? | Which days are in a week? | Which days are there in a "
            "week? | Name all days of the week. | Name the seven days of the week. | List all days of the "
            "week. | Please list the days of the week. | Please say the days of the week. | The days of the "
            "week, please. | Days of the week? | Can you name the days of the week? | Can you tell me the "
            "days of the week? | Do you know the days of the week? | Which are the days of the week? | Say "
            "all days of the week. | Name the weekdays. | What are the weekdays?"
        ),
    ),
    Intent(
        name="months",
        reply=(
            "January, February, March, April, May, June, July, August, September, October, November, "
            "December."
        ),
        forms=phrases(
            "Name the months. | What are the months of the year? | List the months. | Which months does a "
            "year have? | Tell me the months of the year. | Say the twelve months. | Say the months. | Name "
            "the twelve months. | Say the months of the year. | Please list the months. | Give me the "
            "months of the year. | What months are in a year? | What are the months? | What are the twelve "
            "months? | Which months are in a year? | Which are the months? | Name the months of the year. | "
            "Name all months. | List the months of the year. | List all months. | List the twelve months. | "
            "Please name the months. | Please say the months. | The months, please. | Can you name the "
            "months? | Can you tell me the months? | Do you know the months? | Tell me the months. | Tell "
            "me the twelve months. | Say all months. | Write the months. | Write down the months. | Months "
            "of the year?"
        ),
    ),
    Intent(
        name="alphabet",
        reply=("a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z."),
        forms=phrases(
            "Say the alphabet. | Recite the alphabet. | What are the letters of the alphabet? | List the "
            "alphabet. | Tell me the alphabet. | Write down the alphabet. | What is the alphabet? | Name "
            "the letters of the alphabet. | List the letters of the alphabet. | Say all letters. | Give me "
            "the alphabet. | What letters are in the alphabet? | Which letters does the alphabet have? | "
            "Which letters are there? | What are the letters? | Name the letters. | Name all letters. | "
            "List all letters. | List the letters. | Give me all letters. | Give me the letters of the "
            "alphabet. | Tell me all letters. | Tell me the letters of the alphabet. | Say the letters of "
            "the alphabet. | Please say the alphabet. | Please recite the alphabet. | Please list the "
            "alphabet. | Can you say the alphabet? | Can you recite the alphabet? | Do you know the "
            "alphabet? | The alphabet, please. | Write the alphabet. | Write all letters. | The letters "
            "from a to z."
        ),
    ),
)
INTENTS = tuple(replace(intent, forms=(*intent.forms, *further_forms()[intent.name])) for intent in _INTENTS)
_WEIGHTS = tuple(
    3.0 if intent.name == "hello" else 0.4 if intent.name in FIXED_LISTS else 1.0 for intent in INTENTS
)


def pick_intent(rng: random.Random) -> Intent:
    """Return an intent, greetings more often and the fixed lists less often."""
    return rng.choices(INTENTS, _WEIGHTS)[0]


def intent_forms(intent: Intent, split: Split) -> tuple[str, ...]:
    """Return the ways to say `intent` that belong to `split`, with `{x}` still to be filled."""
    return forms_of(intent.forms, split, 1 if intent.name in FIXED_LISTS else NUM_HELD_OUT_FORMS)


def say(rng: random.Random, intent: Intent, split: Split = Split.TRAIN) -> str:
    """Return one way to say `intent`."""
    return rng.choice(intent_forms(intent, split)).replace("{x}", rng.choice(ADDRESSES))
