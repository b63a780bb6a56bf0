"""Questions about kvchat and about the starter model itself, with their answers."""

from __future__ import annotations

from kvchat.starter.phrases import Topic, phrases

TOPICS = (
    Topic(
        name="kvchat",
        answer=(
            "kvchat is a chat for the terminal that runs the language model in its own process. It treats "
            "the KV cache as something you own: it survives restarts, forks for free and is visible while "
            "it works."
        ),
        nouns=phrases("kvchat | the kvchat program | this program | this chat"),
        forms=phrases(
            "What is kvchat? | What does kvchat do? | What is kvchat for? | Why should I use kvchat? | What "
            "is special about kvchat? | What can kvchat do? | Which program am I using? | How is kvchat "
            "different from other chats? | Tell me what kvchat does. | What kind of program is kvchat? | "
            "What makes kvchat different? | What is the idea of kvchat? | What is the goal of kvchat? | "
            "What is the name of this program? | Which chat is this? | How does kvchat differ from other "
            "programs? | Why was kvchat made? | Is kvchat a chat program?"
        ),
    ),
    Topic(
        name="identity",
        answer=("I am the starter model of kvchat, a very small language model that ships with the program."),
        forms=phrases(
            "Who are you? | What are you? | What is your name? | Tell me about yourself. | Introduce "
            "yourself. | Which model are you? | Are you a robot? | Are you a human? | What should I call "
            "you? | Who am I talking to? | What kind of model are you? | Are you a language model? | Do you "
            "have a name? | Am I talking to a machine? | Please introduce yourself. | Who is there? | Who "
            "is speaking? | Are you a person? | Are you a computer? | Are you a program? | Say who you are. "
            "| What is your model name? | Am I talking to a human? | Do I talk to a person? | Are you an "
            "AI? | Are you a bot? | Who answers me? | May I know your name?"
        ),
    ),
    Topic(
        name="abilities",
        answer=(
            "I can remember facts you tell me, find a detail in a text, answer questions about KV caches "
            "and kvchat, repeat words, count and add small numbers."
        ),
        nouns=phrases("your abilities | your skills"),
        forms=phrases(
            "What can you do? | How can you help me? | What are you able to do? | What do you know? | Help. "
            "| What should I ask you? | What are you good at? | What can I ask you? | Show me what you can "
            "do. | What do you do? | Can you help me? | What are you for? | Give me an example of what you "
            "can do. | What can I do with you? | What can you help me with? | What can I use you for? | "
            "Which questions can you answer? | What are your skills? | Tell me what you can do. | What do "
            "you offer? | How can I use you? | List your abilities. | What kind of questions can I ask? | "
            "Which things can you do? | I need help. | How do I use you?"
        ),
    ),
    Topic(
        name="limits",
        answer=(
            "I am tiny, so I know nothing about the world beyond KV caches and kvchat. For real questions "
            "start kvchat with --model and a larger model."
        ),
        nouns=phrases("your limits | your weaknesses"),
        forms=phrases(
            "What can you not do? | What are your limits? | What do you not know? | Are you smart? | How "
            "good are you? | Why are you so limited? | Are you as good as a large model? | Can I trust your "
            "answers? | What are you bad at? | Do you make mistakes? | What can't you do? | How clever are "
            "you? | How reliable are you? | Are you intelligent? | Do you know everything? | Why do you "
            "know so little? | Are your answers correct? | Can you be wrong? | Are you a good model? | What "
            "are you not good at? | Why can you not answer that? | Which questions can you not answer?"
        ),
    ),
    Topic(
        name="training",
        answer=(
            "I was trained from nothing by a script of the kvchat project, on conversations that the "
            "project's own generator writes."
        ),
        nouns=phrases("your training | your training data"),
        forms=phrases(
            "How were you trained? | Who made you? | Who trained you? | Where do you come from? | What were "
            "you trained on? | Which data were you trained on? | Who built you? | Who created you? | How "
            "did you learn this? | How were you made? | Can I train you again? | Who wrote you? | Who "
            "developed you? | Where were you trained? | What did you learn from? | Where does your "
            "knowledge come from? | How did you learn to talk? | Who taught you? | How was this model "
            "trained? | Which texts did you learn from? | Who is your maker? | How were you created? | What "
            "is your origin?"
        ),
    ),
    Topic(
        name="your size",
        answer=(
            "I have about 3.1 million parameters in six layers. Three layers use full attention and three a "
            "sliding window of 128 tokens."
        ),
        nouns=phrases("your size | your architecture"),
        forms=phrases(
            "How large are you? | How big are you? | How many parameters do you have? | How many layers do "
            "you have? | What is your architecture? | Are you a small model? | Which layers do you have? | "
            "How many weights do you have? | What size are you? | How many weights are in you? | How small "
            "are you? | How many parameters are there? | What do you look like inside? | Describe your "
            "layers. | How are you built inside? | How many parameters does this model have? | Is this a "
            "large model? | What is your number of layers?"
        ),
    ),
    Topic(
        name="your context",
        answer=(
            "I was trained on conversations of up to 4096 tokens. Beyond that my memory becomes unreliable."
        ),
        nouns=phrases("your context length | your maximum context | your context window"),
        forms=phrases(
            "How long can our conversation be? | How much can you remember? | How many tokens can you read? "
            "| How long is your memory? | What is your context length? | When do you start to forget? | Is "
            "there a limit to what you remember? | How long a text can you read? | How far back can you "
            "remember? | How many tokens fit into your context? | How long can a conversation get? | How "
            "good is your memory? | Will you forget what I said? | Do you forget things? | How many words "
            "can you remember? | What is the longest text you can read? | How long may my text be? | How "
            "large is your context?"
        ),
    ),
    Topic(
        name="memory full",
        answer=(
            "When the memory is full, kvchat moves blocks that are not in use to a slower tier or drops "
            "them. Your words are never lost, because the tokens are stored separately."
        ),
        forms=phrases(
            "What happens when the memory is full? | What if the cache is full? | What does kvchat do when "
            "memory runs out? | Can the cache overflow? | Do I lose my conversation when the cache is full? "
            "| What if there is no memory left? | What happens when there is no room for new blocks? | Is "
            "my text lost when blocks are dropped? | What if the cache gets lost? | Can I lose words when "
            "the cache is deleted? | What happens if memory runs out? | What happens if the cache is full? "
            "| What happens when the cache runs out of memory? | Is anything lost when memory is full? | "
            "Can my conversation get lost? | What do you do when there is no room? | What if I run out of "
            "memory? | Do I lose text when the memory is full? | Can the memory overflow? | What happens "
            "when the cache is lost?"
        ),
    ),
    Topic(
        name="exact",
        answer=(
            "Exact means that the cache gives the same tokens as computing everything again in full "
            "precision. It is the default in kvchat."
        ),
        nouns=phrases("an exact cache | the exact mode | exactness"),
        forms=phrases(
            "What does exact mean? | What is an exact cache? | Does the cache change my answers? | Is the "
            "default cache exact? | Are cached answers the same? | What does exact mean in kvchat? | Is the "
            "cache exact? | Is kvchat exact? | Does caching change the answer? | Are answers from the cache "
            "the same? | Is something lost by caching? | When is a cache exact? | What does it mean that a "
            "session is exact?"
        ),
    ),
    Topic(
        name="approximate",
        answer=(
            "Approximate means that the cache has lost something, because it is quantised, pruned or "
            "sparse. kvchat marks such a session wherever it is shown."
        ),
        nouns=phrases("an approximate cache | the approximate mark | an approximate session"),
        forms=phrases(
            "What does approximate mean? | Why is my session marked approximate? | When is a session "
            "approximate? | What is a lossy cache? | How do I see that a cache is lossy? | What is an "
            "approximate cache? | What does lossy mean? | What does the approximate mark mean? | When is a "
            "cache approximate? | Why is this session approximate? | How does kvchat show that a cache is "
            "lossy? | How are lossy caches marked? | Is an approximate cache lossy? | How do I know that a "
            "session is approximate?"
        ),
    ),
    Topic(
        name="fingerprint",
        answer=(
            "The fingerprint is a digest of the weights, the config and the cache format. Blocks are used "
            "only when the fingerprint matches, so models never mix their caches."
        ),
        nouns=phrases("a fingerprint | the fingerprint | a model fingerprint"),
        forms=phrases(
            "What is a fingerprint? | What does the fingerprint contain? | Can two models use the same "
            "blocks? | Why does kvchat need a fingerprint? | How are the caches of two models kept apart? | "
            "What is the fingerprint of a model? | What is the fingerprint for? | What is in a fingerprint? "
            "| What is the fingerprint made of? | Do two models share blocks? | Can caches of different "
            "models mix? | What keeps the caches of models apart? | Why do models not mix their caches? | "
            "What happens to the cache when I change the weights?"
        ),
    ),
    Topic(
        name="block key",
        answer=(
            "A block key is a hash of the tokens of the block and the key of the block before it. Equal "
            "beginnings therefore get equal keys."
        ),
        nouns=phrases("a block key | the block key | block keys"),
        forms=phrases(
            "What is a block key? | How is a block named? | How do you recognise equal blocks? | What is "
            "the name of a block made of? | Why are blocks named by content? | What does a block key "
            "contain? | How is a block key computed? | What is a block key made of? | How does a block get "
            "its name? | How do I know that two blocks are equal? | What is the name of a block? | What "
            "does the key of a block depend on? | Why do blocks have keys? | How are blocks named?"
        ),
    ),
    Topic(
        name="session",
        answer=(
            "A session is one conversation. It is stored as a tree of turns with the exact tokens of every "
            "message."
        ),
        nouns=phrases("a session | sessions | a kvchat session"),
        forms=phrases(
            "What is a session? | How is a conversation stored? | What does a session contain? | What is "
            "stored of my conversation? | What does session mean in kvchat? | What is in a session? | What "
            "is a session made of? | What is stored in a session? | How does kvchat store a conversation? | "
            "How are my messages stored? | What does session mean? | How is my chat saved? | What do you "
            "store of my chat?"
        ),
    ),
    Topic(
        name="branch",
        answer=(
            "A branch is one path through the tree of turns, from the first message to a leaf. Forking or "
            "editing a message makes a new branch."
        ),
        nouns=phrases("a branch | branches | a branch of a conversation"),
        forms=phrases(
            "What is a branch? | What does branch mean? | How do I get a second branch? | What is a path "
            "through a conversation called? | What happens when I edit a message? | What is a branch in "
            "kvchat? | What does a branch contain? | How do I make a new branch? | When is there a new "
            "branch? | What happens when I change a message? | Can a conversation have several paths? | Can "
            "I edit a message? | What is one path through the tree called?"
        ),
    ),
    Topic(
        name="bundle",
        answer=(
            "A bundle is one file that holds a whole session, its tokens and, if you want, its cache "
            "blocks. You can send it to someone and continue there."
        ),
        nouns=phrases("a bundle | a kvchat bundle | a bundle file"),
        forms=phrases(
            "What is a bundle? | How do I export a conversation? | How can I share a session? | What is in "
            "a kvchat file? | How do I move a chat to another computer? | Can I send a conversation to a "
            "friend? | What is a bundle for? | What does a bundle contain? | How do I save a conversation "
            "to a file? | How do I send a chat to a friend? | Can I export my chat? | How can I export a "
            "session? | How do I take a chat to another machine? | Can I share a conversation? | What is a "
            "kvchat file?"
        ),
    ),
    Topic(
        name="resume",
        answer=(
            "Use kvchat resume with the name of the session. The blocks come back from the disk, so the "
            "conversation continues without being read again."
        ),
        nouns=phrases("resuming a session | the resume command"),
        forms=phrases(
            "How do I resume a session? | Can I continue a conversation tomorrow? | What happens after a "
            "restart? | Does the cache survive a restart? | How do I get back to an old chat? | Do you "
            "remember me after a restart? | What happens when I close kvchat? | Can I go on where I "
            "stopped? | How can I resume a conversation? | Can I resume later? | How do I continue an old "
            "chat? | How do I go on with an old conversation? | Is my conversation there after a restart? | "
            "What happens when I quit? | What is left after I close the program? | Can I continue later? | "
            "Can I continue where I stopped? | Will my chat be there tomorrow?"
        ),
    ),
    Topic(
        name="other model",
        answer=(
            "Start kvchat with --model and the path or hub id of a causal language model from Hugging Face. "
            "Any such model runs unmodified."
        ),
        nouns=phrases("the model option | the --model flag"),
        forms=phrases(
            "How do I use another model? | Can I use a larger model? | Which models can kvchat run? | How "
            "do I load a better model? | How do I change the model? | Can I run my own model? | How do I "
            "get better answers? | Where do I set the model? | Does kvchat support other models? | Which "
            "models are supported? | Which models can I use? | Can kvchat run other models? | How do I "
            "switch the model? | How do I choose a model? | How can I get a smarter model? | How do I start "
            "kvchat with another model? | How do I load a model from Hugging Face? | Can I use Hugging Face "
            "models? | What other models can I run?"
        ),
    ),
    Topic(
        name="offline",
        answer=(
            "Everything runs on your own computer. kvchat uses the network only to fetch a model that is "
            "not there yet, or a remote engine that you chose."
        ),
        nouns=phrases("the use of the network | the privacy of kvchat"),
        forms=phrases(
            "Do you need the internet? | Can I use kvchat offline? | Is my data private? | Where does the "
            "model run? | Do you send my messages anywhere? | Does kvchat work without a network? | Who can "
            "read our conversation? | Do you run in the cloud? | Are my messages sent to a server? | Is "
            "this chat private? | Does kvchat need the internet? | Does kvchat need a network? | Does it "
            "work offline? | Where do you run? | Does the model run on my computer? | Are my messages "
            "private? | Does anybody else see my messages? | Is anything sent over the network? | Is my "
            "text sent to the internet? | Are you online? | Where is the model?"
        ),
    ),
    Topic(
        name="gpu",
        answer=(
            "No, a GPU is not needed. I am small enough to run on any processor; larger models are faster "
            "with a GPU."
        ),
        forms=phrases(
            "Do I need a GPU? | Can you run on a CPU? | Which hardware do I need? | Does kvchat need a "
            "graphics card? | Will this work on my laptop? | Is a GPU required? | What computer do I need? "
            "| Can I run this without a GPU? | Does it run on a normal computer? | Do you use a graphics "
            "card? | Which hardware does kvchat need? | What hardware is needed? | Do you need a GPU? | "
            "Does kvchat need a GPU? | Can I use a normal computer? | Does it work on an old computer? | Is "
            "a CPU enough? | Is my computer fast enough? | Do you run on a CPU? | Do I need a fast "
            "computer?"
        ),
    ),
    Topic(
        name="stop",
        answer=("Press escape to stop an answer. The part that was written stays in the conversation."),
        nouns=phrases("the stop key | stopping an answer"),
        forms=phrases(
            "How do I stop an answer? | How can I interrupt you? | Which key stops you? | How do I cancel "
            "an answer? | Can I stop you? | What do I press to stop? | You talk too much, how do I stop "
            "you? | What happens when I interrupt an answer? | Which key stops an answer? | How do I make "
            "you stop? | How can I stop an answer? | Which key do I press to stop you? | Can I interrupt an "
            "answer? | What happens when I stop an answer? | What happens if I interrupt you? | Is a "
            "stopped answer lost? | How do I end an answer early?"
        ),
    ),
    Topic(
        name="greedy",
        answer=(
            "Greedy decoding always takes the most likely next token. The same prompt then always gives the "
            "same answer."
        ),
        nouns=phrases("greedy decoding | temperature zero | greedy sampling"),
        forms=phrases(
            "What is greedy decoding? | How do you choose the next token? | Why do you always say the same? "
            "| What does greedy mean? | Do you always give the same answer? | What is greedy sampling? | "
            "What is temperature zero? | Why are your answers always the same? | Why do you repeat the same "
            "answer? | How is the next token chosen? | Which token is chosen next? | What does greedy "
            "decoding do? | Are your answers random? | Why is your answer always the same?"
        ),
    ),
    Topic(
        name="overview",
        answer=(
            "When you send a message, the tokenizer turns it into tokens. kvchat looks for blocks that "
            "already hold the beginning of the conversation and reuses them. The rest is prefilled: its "
            "keys and values are computed and written to new blocks. Then the answer is decoded token by "
            "token, and each step reads the whole cache. At the end of the turn the blocks are saved, so "
            "that the next message can start from them."
        ),
        forms=phrases(
            "Explain everything step by step. | What happens when I send a message? | How does kvchat work? "
            "| Explain in detail how kvchat works. | Give me a long explanation. | Describe a whole turn. | "
            "How does it all work together? | What happens during a turn? | Give me an overview. | Walk me "
            "through one message. | Tell me in detail what happens in a turn. | How does the whole thing "
            "work? | How does everything work together? | Explain how it all works. | Describe step by step "
            "what happens. | What happens in one turn? | What happens when I press enter? | Explain kvchat "
            "step by step. | Explain the whole process. | Show me all the steps of a turn. | Take me "
            "through one turn. | What happens to my message?"
        ),
    ),
)
