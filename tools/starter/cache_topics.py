"""Questions about the KV cache and its blocks, with their answers."""

from __future__ import annotations

from tools.starter.phrases import Topic, phrases

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
            "KV cache hold? | Tell me what a KV cache is. | What does the KV cache do? | What is the KV "
            "cache? | What is in a KV cache? | What does a KV cache contain? | What does a KV cache keep? | "
            "What does a KV cache store? | What do you store in a KV cache? | What is the KV cache made of? "
            "| Which things are in the KV cache?"
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
            "keys and values? | Would you be slower without a cache? | Why is there a KV cache? | Why have "
            "a KV cache? | Why does a model use a KV cache? | Why do you use a KV cache? | What is a cache "
            "good for? | What would happen without a cache? | How does the cache save time? | How does a KV "
            "cache save time? | What if there were no cache? | What if there is no KV cache? | Why does the "
            "cache help? | What is the use of a KV cache? | Why not compute everything again? | Does the "
            "cache make you faster?"
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
            "many bytes does the cache have? | What is the size of a KV cache? | How much memory does a KV "
            "cache use? | How much memory does the cache use? | How much does the cache grow? | When does "
            "the cache grow? | Why does the cache grow? | Does the cache get bigger? | How big is the "
            "cache? | How big is a KV cache? | How large does the cache get? | How many bytes does the "
            "cache need? | Does a long conversation need more memory? | Why does a long chat need much "
            "memory? | How much room does the cache need? | Is the cache big?"
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
            "to my prompt? | What is done before the first token? | Which step reads the prompt? | What is "
            "prefilling? | When does prefill happen? | What is computed during prefill? | What happens in "
            "the prefill phase? | How do you read a prompt? | How do you read my prompt? | How is my prompt "
            "read? | What is the first step of an answer? | What comes before decode? | What comes before "
            "the first token? | What does the model do with my prompt? | What is the reading of a prompt "
            "called?"
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
            "happens while you write? | What is decoding? | How do you write an answer? | How do you "
            "produce an answer? | How are new tokens made? | How are tokens generated? | What comes after "
            "prefill? | What does decode do? | What is limited by memory bandwidth? | Why is decode slow? | "
            "How does an answer come about?"
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
            "decode? | Why is decode slower than prefill? | Are prefill and decode the same? | Is prefill "
            "faster than decode? | Is prefill slower than decode? | In what do prefill and decode differ? | "
            "How does prefill differ from decode? | How does decode differ from prefill? | Tell me the "
            "difference between prefill and decode. | Prefill and decode, what is the difference? | What is "
            "different in prefill and decode? | Which one is slower, prefill or decode? | Is decode the "
            "same as prefill? | Why does decode differ from prefill?"
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
            "blocks? | What is in a block? | What is stored in a block? | How many tokens make a block? | "
            "How many tokens are there in one block? | What is the size of a block? | What size does a "
            "block have? | How long is a block? | What is a KV block? | Why does the cache have blocks? | "
            "What are blocks? | What is a cache block? | Why use blocks?"
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
            "not full? | What does the tail do? | What does the tail hold? | What does tail mean? | Why is "
            "there a tail? | Which block can still change? | Which block is only partly filled? | What is "
            "the name of the last block? | What is the partly filled block called? | Is the last block "
            "full?"
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
            "How do I compute a slot? | Where does a token live in the cache? | What are slots? | What is a "
            "cache slot? | What is in a slot? | What is a slot for? | How do I find a token in the cache? | "
            "How do you know where a token is?"
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
            "does a sequence find its blocks? | What are block tables? | What is the table of blocks? | "
            "What is stored in a block table? | How does a block table work? | How do I find a block in "
            "memory? | Where is it written where a block lies? | Why is there a block table? | What does a "
            "block table map? | What is the use of a block table? | Must blocks lie next to each other? | "
            "Do blocks lie in order?"
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
            "share blocks? | What does prefix sharing mean? | What is a shared prefix? | What is prefix "
            "caching? | What does prefix sharing do? | Why is prefix sharing good? | What do two equal "
            "beginnings share? | How do chats share blocks? | How do chats share memory? | What if two "
            "conversations start the same way? | Is the same beginning computed twice? | Can conversations "
            "share a beginning? | What do conversations share?"
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
            "not computed? | What is a prefix hit? | What does cache hit mean? | What does a cache hit do? "
            "| What do I gain from a cache hit? | What does it mean when tokens are cached? | Which tokens "
            "are cached? | Which tokens are not computed again? | When does an answer start sooner? | How "
            "do I get a cache hit? | What is a hit in the cache? | Why did you answer so fast?"
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
            "from here? | What is forking? | What does a fork do? | What is copied in a fork? | Why is "
            "forking cheap? | Why is a fork free? | Is forking expensive? | How expensive is a fork? | What "
            "happens in a fork? | How do I try something else? | Can I try another answer? | How do I start "
            "a new branch from here?"
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
            "block? | Is a shared block ever changed? | What is copy on write? | When is a tail copied? | "
            "When does a shared tail get copied? | What happens if someone writes to a shared block? | Can "
            "a shared block change? | Why do full blocks need no copy? | Is a full block ever copied? | "
            "What is copied before a write?"
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
            "Can blocks be on the disk? | In which places can a block be? | What is a memory tier? | What "
            "are the tiers? | What are the memory tiers? | How many tiers are there? | Tell me the tiers. | "
            "Which places are there for blocks? | Where can a block be? | Where can a block live? | Where "
            "does kvchat keep blocks? | Do blocks move between tiers? | Which tier is the slowest? | Can a "
            "block be in host memory?"
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
            "| Where does a demoted block go? | How do you make room on the device? | What is demoting? | "
            "What does it mean to demote? | What does demotion do? | What does demotion mean? | What "
            "happens in demotion? | How are blocks demoted? | Where do demoted blocks go? | Do I lose a "
            "demoted block? | How do I make room on the device? | How does kvchat make room without losing "
            "a block? | What is it called when a block moves to a slower tier? | When do blocks leave the "
            "device?"
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
            "moved to a faster tier? | What does it mean to promote? | What does promotion do? | What does "
            "promotion mean? | Why are blocks promoted? | What happens in promotion? | How are blocks "
            "promoted? | Where do promoted blocks go? | When does a block return to the device? | How does "
            "a block return from the disk? | What is it called when a block moves to a faster tier? | When "
            "do blocks come back? | When does a block come back to the device?"
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
            "blocks? | What does eviction do? | What is an evicted block? | What happens in eviction? | "
            "What happens to an evicted block? | When does eviction happen? | Why is there eviction? | How "
            "are old blocks removed? | Which blocks are freed? | Which blocks are removed? | When are "
            "blocks freed? | When are blocks removed? | Is an evicted block lost? | How does kvchat free "
            "memory?"
        ),
    ),
)
