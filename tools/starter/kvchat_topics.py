"""Questions about what kvchat does and how to use it, with their answers."""

from __future__ import annotations

from tools.starter.phrases import Topic, phrases

TOPICS = (
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
            "when the cache is lost? | What do you do when memory is full? | What does kvchat do when the "
            "cache is full? | What happens when there is not enough memory? | Suppose the memory is full, "
            "what then? | Do I lose anything when memory runs out? | What happens to my words when memory "
            "is full? | Does a full cache delete my conversation? | Is my conversation safe when memory "
            "runs out? | What if too many blocks are in memory? | What if there are too many blocks? | Does "
            "kvchat crash when the memory is full?"
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
            "session is exact? | When is the cache exact? | What is meant by exact? | Does the cache make "
            "answers worse? | Do cached tokens change what you say? | Does a cache hit change the answer? | "
            "Are the answers identical with the cache? | Does kvchat compute exactly? | What is the default "
            "cache? | Would the answer be the same without the cache? | Do I get the same answer with a "
            "cache?"
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
            "session is approximate? | What is approximate? | What is meant by approximate? | What is the "
            "meaning of the approximate mark? | Which sessions are approximate? | When does kvchat mark a "
            "session? | How can I tell that a cache is lossy? | What has an approximate cache lost? | Why "
            "does it say approximate? | What is marked as approximate?"
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
            "What happens to the cache when I change the weights? | How is the fingerprint computed? | What "
            "is the digest of the weights called? | When does the fingerprint match? | Why must the "
            "fingerprint match? | When does the fingerprint change? | Does every model have a fingerprint? "
            "| How do you know that a block fits the model? | Can one model use the blocks of another? | "
            "Are caches shared between models?"
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
            "does the key of a block depend on? | Why do blocks have keys? | How are blocks named? | What "
            "is the hash of a block? | How are block keys made? | What are block keys for? | What goes into "
            "a block key? | What identifies a block? | How does kvchat know that a block is the same? | "
            "What is hashed in a block key? | Why do equal beginnings get equal keys? | How do you compute "
            "the key of a block?"
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
            "store of my chat? | What is a kvchat session? | Tell me what a session is. | Where is my "
            "conversation stored? | What makes a session? | In which form is a conversation stored? | How "
            "do you keep a conversation? | What is kept of a conversation? | How are turns stored? | In "
            "what form are my messages kept? | What do you save of our conversation? | Is a session a "
            "conversation?"
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
            "I edit a message? | What is one path through the tree called? | Where does a branch begin? | "
            "How are branches made? | What makes a new branch? | How does a new branch start? | What is a "
            "branch of the tree? | What happens if I edit an old message? | What do I get when I edit a "
            "message? | Can I have two branches? | Can a session have two branches? | How do branches come "
            "about? | Why is there a second branch?"
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
            "kvchat file? | What can I do with a bundle? | How do I make a bundle? | Can I give a session "
            "to someone? | How do I give a session to a friend? | How can I move a session? | How can I "
            "send a session to someone? | How do I put a session into one file? | Which file holds a whole "
            "session? | Can I take my session to another machine? | How do I copy a chat to another "
            "computer? | What is the export of a session?"
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
            "Can I continue where I stopped? | Will my chat be there tomorrow? | How do I come back to a "
            "session? | How can I go on with an old session? | What does resume do? | What does kvchat "
            "resume do? | How do I open an old session? | How do I reopen a conversation? | Will you "
            "remember me tomorrow? | What happens if I restart kvchat? | Can I come back to this later? | "
            "Does a restart delete the cache? | How do I get my old conversation back?"
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
            "models? | What other models can I run? | How can I change the model? | How can I use another "
            "model? | Where do I choose the model? | Can you run a bigger model? | Can kvchat run a larger "
            "model? | How do I use a bigger model? | How do I use a model from the hub? | Which models work "
            "with kvchat? | Which models work here? | What models can I load? | Can I have a better model? "
            "| How do I give kvchat another model? | Can I bring my own model? | How do I select another "
            "model?"
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
            "text sent to the internet? | Are you online? | Where is the model? | Is this running locally? "
            "| Do you work offline? | Does kvchat send my data away? | Does it run locally? | Is the "
            "internet needed? | Do I need to be online? | Can I use this without the internet? | Does this "
            "program use the network? | What do you use the network for? | Is my conversation private? | "
            "Who sees my messages? | Can anybody read my messages? | Is there a server? | Are you on a "
            "server? | Does everything run on my machine? | Are my words sent away?"
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
            "computer? | Can kvchat run on a CPU? | Does this need a GPU? | Do I have to have a GPU? | What "
            "kind of computer do I need? | Can I use kvchat on a laptop? | Does this run without a graphics "
            "card? | Is my laptop good enough? | Can a small computer run you? | Would a GPU help? | Is it "
            "faster with a GPU? | Which processor do I need?"
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
            "stopped answer lost? | How do I end an answer early? | How do I interrupt an answer? | How do "
            "I interrupt you? | How does one stop an answer? | How can I cancel your answer? | Stop "
            "writing, how? | What key stops the answer? | What is the key to stop you? | What do I press to "
            "cancel? | Is there a key to stop you? | What happens to an answer that I stopped? | What "
            "happens to the part that was written? | Can I cancel an answer? | I want to stop you, how? | "
            "How do I make the answer stop?"
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
            "decoding do? | Are your answers random? | Why is your answer always the same? | Why do I get "
            "the same answer again? | Why do I always get the same answer? | Which token do you choose? | "
            "Is there any chance in your answers?"
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
            "through one turn. | What happens to my message? | How does it work in detail? | Tell me how "
            "kvchat works. | Explain a whole turn. | Explain what happens in a turn. | What happens after I "
            "press enter? | What happens when I send you a message? | What is done with my message? | "
            "Describe everything that happens in a turn. | Give me the whole picture. | Go through all the "
            "steps."
        ),
    ),
)
