"""Questions about attention and KV caches, with their answers."""

from __future__ import annotations

from kvchat.starter.phrases import Topic, phrases

TOPICS = (
    Topic(
        name="kv cache",
        answer=(
            "A KV cache keeps the attention keys and values of all tokens read so far. The model looks them "
            "up for every new token instead of computing them again."
        ),
        nouns=phrases("a KV cache | the KV cache | KV caching | a key-value cache"),
        forms=phrases(
            "What is a KV cache? | What does a KV cache do? | What is stored in a KV cache? | What does KV "
            "cache stand for? | How does a KV cache work? | What do you keep in the KV cache? | Why is it "
            "called a KV cache? | What is kept in the cache? | What is inside a KV cache? | How does the "
            "cache of a language model work? | What is the cache for keys and values? | Which data does the "
            "KV cache hold?"
        ),
    ),
    Topic(
        name="why cache",
        answer=(
            "Without a KV cache the model would have to compute the keys and values of the whole "
            "conversation again for every new token. With it, each step computes only the new token."
        ),
        forms=phrases(
            "Why is a KV cache useful? | Why do models need a KV cache? | What is a KV cache good for? | "
            "Why does a KV cache make things faster? | What happens without a KV cache? | What is the "
            "benefit of caching keys and values? | Why should I care about the KV cache? | How does caching "
            "speed up generation? | Why do we cache keys and values? | What would a model do without its "
            "cache? | Does a KV cache save time? | Why use a cache at all? | What is the purpose of the KV "
            "cache? | What do we gain from a KV cache? | Why is generation slow without a cache? | Is a KV "
            "cache necessary? | Do I need a KV cache? | What is the advantage of a KV cache? | Why keep old "
            "keys and values? | Would you be slower without a cache?"
        ),
    ),
    Topic(
        name="cache size",
        answer=(
            "A KV cache grows with every token: each layer stores one key and one value per key-value head. "
            "Long conversations therefore need a lot of memory."
        ),
        nouns=phrases("the size of the KV cache | the memory use of the cache | the size of a cache"),
        forms=phrases(
            "How large is a KV cache? | How much memory does the cache need? | Why does the KV cache need "
            "so much memory? | How big does the cache get? | How many bytes does a token take? | What makes "
            "the cache grow? | Does the cache grow with the conversation? | How does cache size depend on "
            "the context? | How much space does the cache take? | What does the cache cost in memory? | How "
            "fast does the cache grow? | Is the cache large? | How much memory does a long conversation "
            "need? | How much memory does one token need? | Why is a long conversation expensive? | How "
            "many bytes does the cache have?"
        ),
    ),
    Topic(
        name="prefill",
        answer=(
            "Prefill is the step in which the model reads a prompt. It computes the keys and values of many "
            "tokens at once and stores them in the cache."
        ),
        nouns=phrases("prefill | the prefill | prefilling | the prefill phase"),
        forms=phrases(
            "What is prefill? | What happens during prefill? | What does prefill mean? | How is a prompt "
            "read? | What happens when the model reads my prompt? | What does the prefill do? | How does "
            "prefill work? | What is the prefill step? | How does the model read a prompt? | What happens "
            "to my prompt? | What is done before the first token? | Which step reads the prompt?"
        ),
    ),
    Topic(
        name="decode",
        answer=(
            "Decode is the step that produces an answer, one new token at a time. Each step reads the whole "
            "cache, so its speed is limited by memory bandwidth."
        ),
        nouns=phrases("decode | decoding | the decode phase | the decode step"),
        forms=phrases(
            "What is decode? | What happens during decode? | What does decoding mean? | How is an answer "
            "generated? | Why is decoding limited by memory? | What does the decode step do? | How does "
            "decode work? | What is the decode step? | How does the model write an answer? | How are "
            "answers produced? | Which step writes the answer? | How does the model make new tokens? | What "
            "happens while you write?"
        ),
    ),
    Topic(
        name="prefill or decode",
        answer=(
            "Prefill computes many tokens in one step and is limited by arithmetic. Decode computes one "
            "token per step and is limited by memory bandwidth."
        ),
        nouns=phrases("the difference between prefill and decode | prefill versus decode"),
        forms=phrases(
            "What is the difference between prefill and decode? | How do prefill and decode differ? | Is "
            "prefill the same as decode? | Why is prefill faster than decode? | Compare prefill and decode. "
            "| Prefill or decode, which one is slower? | Why are prefill and decode different? | What is "
            "the difference between decode and prefill? | Is decode slower than prefill? | Is prefill "
            "different from decode? | Which is faster, prefill or decode? | Explain the difference between "
            "prefill and decode. | What distinguishes prefill from decode? | How is prefill different from "
            "decode? | Why is decode slower than prefill? | Are prefill and decode the same?"
        ),
    ),
    Topic(
        name="block",
        answer=(
            "A block holds the keys and values of 64 consecutive tokens, unless configured otherwise. It is "
            "the unit in which kvchat shares, evicts and stores the cache."
        ),
        nouns=phrases("a block | a cache block | a KV block | the block size"),
        forms=phrases(
            "What is a block? | How many tokens are in a block? | What does a block contain? | How large is "
            "a block? | Why is the cache cut into blocks? | How big is a block? | How many tokens fit into "
            "a block? | How many tokens does a block hold? | Why are there blocks? | What is a block of the "
            "cache? | What does block mean in kvchat? | What are blocks good for? | Why does kvchat use "
            "blocks?"
        ),
    ),
    Topic(
        name="tail",
        answer=(
            "The tail is the last block of a branch, which is only partly filled. It is the only block that "
            "may still change."
        ),
        nouns=phrases("the tail | a tail | the tail block | a tail block"),
        forms=phrases(
            "What is the tail? | What is the last block called? | Which block may still change? | What does "
            "the tail mean in kvchat? | Is there a block that is not full? | What is a tail block? | Which "
            "block is not full yet? | What is the block at the end called? | Can a block change? | Which "
            "block can be changed? | What is the last block of a branch? | What happens to a block that is "
            "not full?"
        ),
    ),
    Topic(
        name="slot",
        answer=(
            "A slot is the place of one token in the cache. Its number is the block number times the block "
            "size plus the offset in the block."
        ),
        nouns=phrases("a slot | a cache slot | a slot number"),
        forms=phrases(
            "What is a slot? | Where is one token stored? | How is a slot computed? | What does slot mean "
            "in kvchat? | How do you find the place of a token? | What does a slot hold? | Where in the "
            "cache is a token? | How is the slot number computed? | What is the place of a token called? | "
            "How do I compute a slot? | Where does a token live in the cache? | What are slots?"
        ),
    ),
    Topic(
        name="block table",
        answer=(
            "A block table maps the blocks of a sequence to their places in memory. With it, the blocks of "
            "one conversation can lie anywhere."
        ),
        nouns=phrases("a block table | the block table | block tables"),
        forms=phrases(
            "What is a block table? | What does the block table do? | How are blocks found in memory? | Why "
            "do we need a block table? | Can the blocks of a conversation lie anywhere? | What is in a "
            "block table? | What is a block table for? | How does kvchat find a block? | What maps blocks "
            "to memory? | What does a block table contain? | Do blocks have to be next to each other? | How "
            "does a sequence find its blocks?"
        ),
    ),
    Topic(
        name="prefix sharing",
        answer=(
            "Prefix sharing means that conversations with the same beginning use the same blocks. The "
            "common part is computed once and stored once."
        ),
        nouns=phrases("prefix sharing | a shared prefix | prefix caching | a prefix match"),
        forms=phrases(
            "What is prefix sharing? | How do two conversations share memory? | What is shared between "
            "conversations? | What happens when two chats start the same way? | How does prefix caching "
            "work? | How can conversations share blocks? | Do conversations share memory? | What is a "
            "common prefix good for? | Is a common beginning stored twice? | Can two chats use the same "
            "blocks? | How does prefix sharing work? | Why share a prefix? | When do two conversations "
            "share blocks?"
        ),
    ),
    Topic(
        name="cache hit",
        answer=(
            "A cache hit means that blocks for the beginning of a prompt are already there. Those tokens "
            "are not computed again, so the answer starts sooner."
        ),
        nouns=phrases("a cache hit | a prefix hit | a hit in the cache"),
        forms=phrases(
            "What is a cache hit? | What does a hit mean? | What happens on a cache hit? | When are tokens "
            "not computed again? | What does it mean that tokens were cached? | What is a hit? | When is "
            "there a cache hit? | When do I get a cache hit? | Why did the answer start so quickly? | What "
            "does cached mean? | What are cached tokens? | Why is a cache hit good? | Why are some tokens "
            "not computed?"
        ),
    ),
    Topic(
        name="fork",
        answer=(
            "A fork starts a new branch of a conversation on the same blocks. It copies no full block, so "
            "it is almost free."
        ),
        nouns=phrases("a fork | forking | forking a conversation"),
        forms=phrases(
            "What is a fork? | What does fork mean? | How do I try another answer? | Is it expensive to "
            "fork? | What happens when I fork a conversation? | How much does a fork cost? | How does a "
            "fork work? | Why is a fork cheap? | Is a fork free? | Can I fork a conversation? | What does "
            "it mean to fork? | How do I fork? | What is copied when I fork? | How can I try something else "
            "from here?"
        ),
    ),
    Topic(
        name="copy-on-write",
        answer=(
            "Copy-on-write means that a shared tail is copied just before someone writes to it. Full blocks "
            "never change, so they need no copy."
        ),
        nouns=phrases("copy-on-write | copy on write | a copy-on-write block"),
        forms=phrases(
            "What is copy-on-write? | When is a block copied? | What happens when a shared block is "
            "written? | Why are shared blocks safe? | How does copy-on-write work? | What does "
            "copy-on-write mean? | Are shared blocks copied? | When does kvchat copy a block? | Who copies "
            "a shared tail? | Why is copy-on-write used? | What happens when two branches write to one "
            "block? | Is a shared block ever changed?"
        ),
    ),
    Topic(
        name="tiers",
        answer=(
            "A tier is a place where blocks can live: the device, host memory or the disk. Blocks move "
            "between the tiers by themselves and stay the same bit for bit."
        ),
        nouns=phrases("a tier | the tiers | a memory tier | the cache tiers"),
        forms=phrases(
            "What is a tier? | Which tiers are there? | Where can blocks be stored? | How many tiers does "
            "kvchat have? | What does tier mean? | What are tiers? | Which tiers exist? | Where do blocks "
            "live? | Where are the blocks kept? | On which devices can blocks be? | How do blocks move? | "
            "Can blocks be on the disk? | In which places can a block be?"
        ),
    ),
    Topic(
        name="demote",
        answer=(
            "To demote a block is to move it to a slower tier, for example from the device to host memory. "
            "That makes room without losing the block."
        ),
        nouns=phrases("demotion | demoting a block | to demote"),
        forms=phrases(
            "What does demote mean? | What happens when a block is demoted? | How is a block moved to a "
            "slower tier? | What is demotion? | Is a demoted block lost? | What does it mean to demote a "
            "block? | Why is a block demoted? | When is a block demoted? | How do blocks leave the device? "
            "| Where does a demoted block go? | How do you make room on the device? | What is demoting?"
        ),
    ),
    Topic(
        name="promote",
        answer=(
            "To promote a block is to move it back to a faster tier, for example from the disk to the "
            "device. It happens when a conversation needs the block again."
        ),
        nouns=phrases("promotion | promoting a block | to promote"),
        forms=phrases(
            "What does promote mean? | What happens when a block is promoted? | How does a block get back "
            "to the device? | What is promotion? | When is a block promoted? | What does it mean to promote "
            "a block? | Why is a block promoted? | How does a block become fast again? | How do blocks come "
            "back from the disk? | Where does a promoted block go? | What is promoting? | How is a block "
            "moved to a faster tier?"
        ),
    ),
    Topic(
        name="eviction",
        answer=(
            "Eviction frees blocks that nobody uses at the moment when memory runs short. An evicted block "
            "can always be computed again from the tokens."
        ),
        nouns=phrases("eviction | cache eviction | evicting a block | an evicted block"),
        forms=phrases(
            "What is eviction? | Which blocks are evicted? | What happens to old blocks? | How are blocks "
            "removed from the cache? | What does evict mean? | When is a block evicted? | What does it mean "
            "to evict a block? | Can I get an evicted block back? | Why are blocks evicted? | How does "
            "eviction work? | How are blocks freed? | Who frees unused blocks? | What happens to unused "
            "blocks?"
        ),
    ),
    Topic(
        name="sliding window",
        answer=(
            "Sliding window attention lets a token look only at the last tokens before it, for example 128. "
            "Such a layer needs a small cache that does not grow."
        ),
        nouns=phrases("a sliding window | sliding window attention | the sliding window"),
        forms=phrases(
            "What is a sliding window? | How does sliding window attention work? | Which layers look only "
            "at the last tokens? | Why use a sliding window? | How large is the sliding window? | What does "
            "the sliding window do? | How big is the window? | How many tokens are in the window? | What is "
            "a window in attention? | Which tokens does a sliding window see? | What does a sliding window "
            "layer see? | Which attention sees only recent tokens? | Why do some layers have a window?"
        ),
    ),
    Topic(
        name="full attention",
        answer=(
            "Full attention lets every token look at all tokens before it. Its cache grows with the whole "
            "conversation."
        ),
        nouns=phrases("full attention | a full attention layer | global attention"),
        forms=phrases(
            "What is full attention? | How does full attention differ from a window? | Which layers see all "
            "tokens? | What does full attention mean? | Why does full attention need more memory? | What "
            "does a full attention layer see? | How does full attention work? | Which attention sees "
            "everything? | Does full attention see all tokens? | What is the opposite of a sliding window? "
            "| What is the cost of full attention? | Why does the cache of full attention grow? | Is full "
            "attention expensive?"
        ),
    ),
    Topic(
        name="grouped-query attention",
        answer=(
            "In grouped-query attention several query heads share one key-value head. That makes the KV "
            "cache several times smaller."
        ),
        nouns=phrases("grouped-query attention | GQA | grouped query attention"),
        forms=phrases(
            "What is GQA? | What does GQA stand for? | How does GQA save memory? | Why do query heads share "
            "keys and values? | What is a key-value head? | What does GQA mean? | How does grouped-query "
            "attention work? | Why is GQA used? | Why do heads share keys? | Which heads share keys and "
            "values? | How do query heads share a key-value head? | How can heads share a cache? | What "
            "does GQA do?"
        ),
    ),
    Topic(
        name="latent attention",
        answer=(
            "Latent attention, MLA for short, stores one compressed vector per token instead of keys and "
            "values for every head. The cache becomes much smaller."
        ),
        nouns=phrases("latent attention | MLA | multi-head latent attention"),
        forms=phrases(
            "What is MLA? | What does MLA stand for? | How does latent attention work? | How does MLA save "
            "memory? | Which attention stores one compressed vector? | What does MLA mean? | What does MLA "
            "do? | Why is MLA used? | What is a latent vector? | What is stored in latent attention? | How "
            "does MLA make the cache smaller? | What does latent attention store? | Why does MLA need less "
            "memory?"
        ),
    ),
    Topic(
        name="attention",
        answer=(
            "Attention compares the query of a token with the keys of earlier tokens. It then mixes their "
            "values, weighted by how well they match."
        ),
        nouns=phrases("attention | self-attention | the attention mechanism"),
        forms=phrases(
            "What is attention? | How does attention work? | What does an attention layer do? | How does a "
            "token look at other tokens? | What happens in attention? | What does attention mean? | What "
            "does attention do? | How do tokens look at each other? | What is an attention layer? | How "
            "does a model look back? | How does a token find other tokens? | What does an attention head "
            "do? | How do tokens exchange information?"
        ),
    ),
    Topic(
        name="keys and values",
        answer=(
            "A key says what a token can be found by, and a value says what it passes on. A query is "
            "compared with the keys to choose the values."
        ),
        nouns=phrases("keys and values | a key and a value | queries, keys and values"),
        forms=phrases(
            "What are keys and values? | What is a key in attention? | What is a value in attention? | What "
            "is a query in attention? | What does the K in KV mean? | What do K and V stand for? | What is "
            "a key? | What is a value? | What is a query? | What does the V in KV mean? | What does KV "
            "mean? | What does KV stand for? | What do the letters K and V mean? | What is a key good for "
            "in attention? | What are queries, keys and values for?"
        ),
    ),
    Topic(
        name="token",
        answer=(
            "A token is a piece of text, often a word or a part of a word. The model reads and writes "
            "tokens, not letters."
        ),
        nouns=phrases("a token | tokens | a text token"),
        forms=phrases(
            "What is a token? | How long is a token? | Is a token a word? | What does the model read? | "
            "What are tokens made of? | What does token mean? | What is meant by token? | Is a token the "
            "same as a word? | Are tokens words? | How large is a token? | Do you read words or tokens? | "
            "Do you read letters? | In which pieces do you read text? | What does a model read and write?"
        ),
    ),
    Topic(
        name="tokenizer",
        answer=(
            "A tokenizer cuts text into tokens and gives each one a number. It also turns the numbers back "
            "into text."
        ),
        nouns=phrases("a tokenizer | the tokenizer | tokenization"),
        forms=phrases(
            "What is a tokenizer? | What does a tokenizer do? | How does text become tokens? | How is text "
            "cut into tokens? | Who turns text into numbers? | What is the tokenizer for? | How does a "
            "tokenizer work? | What does tokenizer mean? | Who cuts text into tokens? | How is text turned "
            "into tokens? | How are tokens made from text? | How do words become numbers? | How does my "
            "text become numbers?"
        ),
    ),
    Topic(
        name="quantised cache",
        answer=(
            "A quantised cache stores keys and values with fewer bits, for example 8 or 4 instead of 16. It "
            "saves memory, but it is approximate."
        ),
        nouns=phrases("a quantised cache | cache quantisation | KV quantisation | quantisation"),
        forms=phrases(
            "What is a quantised cache? | How can the cache use fewer bits? | What does quantised mean? | "
            "Can I store the cache with 4 bits? | Why quantise the cache? | What does a quantised cache do? "
            "| How does a quantised cache save memory? | Does quantisation save memory? | Can the cache be "
            "stored with fewer bits? | What is an int8 cache? | What is an int4 cache? | What does "
            "quantising do? | How do I make the cache smaller? | What is the price of quantisation?"
        ),
    ),
    Topic(
        name="shadowkv",
        answer=(
            "ShadowKV keeps a compressed form of the keys on the device and the values in host memory. For "
            "each step it fetches only the few chunks that matter."
        ),
        nouns=phrases("ShadowKV | the shadow cache | ShadowKV mode"),
        forms=phrases(
            "What is ShadowKV? | How does ShadowKV work? | Where does ShadowKV keep the values? | What does "
            "the shadow cache do? | Why is ShadowKV sparse? | What does ShadowKV do? | What does ShadowKV "
            "mean? | What is kept on the device by ShadowKV? | How does ShadowKV save memory? | What does "
            "ShadowKV fetch? | What is the idea of ShadowKV? | How does the shadow cache work? | Why use "
            "ShadowKV? | Where are the values in ShadowKV?"
        ),
    ),
)
