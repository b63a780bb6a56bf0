"""Greetings and the other courtesies: how they are said and what the model replies."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvchat.starter.phrases import phrases
from kvchat.starter.split import Split, forms_of

NUM_HELD_OUT_FORMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A courtesy with its one reply; `{x}` in a form is replaced by an address such as " there"."""

    name: str
    reply: str
    forms: tuple[str, ...]


ADDRESSES = ("", "", "", " there", " again", " kvchat", " friend", " my friend", " buddy", " you")

INTENTS = (
    Intent(
        name="hello",
        reply=("Hello! I am the small starter model of kvchat. How can I help you?"),
        forms=phrases(
            "Hello{x}! | Hi{x}! | Hey{x}! | Good morning{x}! | Good evening{x}! | Good afternoon{x}! | Good "
            "day{x}! | Greetings{x}! | Hello, hello! | Hi, hi! | Howdy! | Welcome{x}! | Hello{x}, nice to "
            "meet you! | Hi{x}, nice to see you. | Hey{x}, are you there? | Is anybody there? | Hello{x}, "
            "can you hear me? | Hi{x}, it is me. | I am back. | Good evening to you! | A good afternoon to "
            "you! | Good morning to you! | Hello to you! | Hi, good evening! | Hello, good afternoon! | "
            "Hey, good day! | Hello world! | I am here. | Hi, I am new here."
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
            "everything OK? | How is your day? | Are you fine? | Hello, how do you do?"
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
            "thank you. | Cheers, thanks."
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
            "you next time. | I am going home."
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
            "amazing. | Great answer. | You are the best. | How clever you are!"
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
            "bad. | You are bad at this. | You are not right. | What a bad answer!"
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
            "error, sorry. | Oh no, sorry. | My apologies."
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
            "| That is interesting."
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
            "question? | May I ask you something? | Can I begin?"
        ),
    ),
    Intent(
        name="laugh",
        reply=("I am glad that you are amused."),
        forms=phrases(
            "Haha. | Hahaha! | That is funny. | LOL. | You are funny. | Very funny. | Ha ha! | You make me "
            "laugh. | Funny! | That made me laugh. | Hehe. | So funny! | I had to laugh. | I have to laugh. "
            "| I am laughing. | How funny! | You made me laugh. | This is funny. | That was funny. | Really "
            "funny. | That is so funny. | I cannot stop laughing. | Hahaha, funny."
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
            "heart? | Are you in a good mood?"
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
            "do not know what to do. | What could we talk about?"
        ),
    ),
    Intent(
        name="weekdays",
        reply=("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday."),
        forms=phrases(
            "Name the days of the week. | What are the days of the week? | List the days of the week. | "
            "Which days does a week have? | Tell me the days of the week. | Say the days of the week. | "
            "Tell me the seven days of the week. | Please name the days of the week. | Write down the days "
            "of the week. | What are the seven days? | Give me the days of the week."
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
            "months of the year."
        ),
    ),
    Intent(
        name="alphabet",
        reply=("a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z."),
        forms=phrases(
            "Say the alphabet. | Recite the alphabet. | What are the letters of the alphabet? | List the "
            "alphabet. | Tell me the alphabet. | Write down the alphabet. | What is the alphabet? | Name "
            "the letters of the alphabet. | List the letters of the alphabet. | Say all letters. | Give me "
            "the alphabet."
        ),
    ),
)
_WEIGHTS = tuple(
    3.0 if intent.name == "hello" else 0.4 if len(intent.forms) < 14 else 1.0 for intent in INTENTS
)


def pick_intent(rng: random.Random) -> Intent:
    """Return an intent, greetings more often and the fixed lists less often."""
    return rng.choices(INTENTS, _WEIGHTS)[0]


def intent_forms(intent: Intent, split: Split) -> tuple[str, ...]:
    """Return the ways to say `intent` that belong to `split`, with `{x}` still to be filled."""
    return forms_of(intent.forms, split, 1 if len(intent.forms) < 14 else NUM_HELD_OUT_FORMS)


def say(rng: random.Random, intent: Intent, split: Split = Split.TRAIN) -> str:
    """Return one way to say `intent`."""
    return rng.choice(intent_forms(intent, split)).replace("{x}", rng.choice(ADDRESSES))
