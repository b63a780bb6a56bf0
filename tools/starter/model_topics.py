"""Questions about attention, tokens and compressed caches, with their answers."""

from __future__ import annotations

from tools.starter.phrases import Topic, phrases

TOPICS = (
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
            "layer see? | Which attention sees only recent tokens? | Why do some layers have a window? | "
            "What is a window? | What does a sliding window do? | How does a sliding window work? | What is "
            "a sliding window good for? | How many tokens does a sliding window see? | How far does a "
            "sliding window look? | Which layers have a small cache? | Which layers have a window? | How "
            "far back does the window reach? | Why does the cache of a window not grow?"
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
            "attention expensive? | What is global attention? | What does full attention do? | Which tokens "
            "does full attention see? | How far does full attention look? | Why is full attention "
            "expensive? | How much memory does full attention need? | When does attention see all tokens? | "
            "Does the cache of full attention grow?"
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
            "does GQA do? | What is grouped-query attention? | What does grouped-query attention do? | How "
            "does GQA work? | What is shared in GQA? | What do query heads share? | How does GQA make the "
            "cache smaller? | Why use GQA? | What is GQA good for? | What is a query head? | How many heads "
            "share a key?"
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
            "memory? | What does latent attention mean? | What does latent attention do? | How does MLA "
            "work? | Why does MLA save memory? | Why use MLA? | What is MLA good for? | What is stored in "
            "MLA? | What is compressed in MLA? | What is the compressed vector?"
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
            "do? | How do tokens exchange information? | What is self-attention? | What is the attention "
            "mechanism? | What happens in an attention layer? | What does an attention head compute? | How "
            "is attention computed? | What is compared in attention? | What does attention compare? | What "
            "does attention mix? | How does an attention layer work? | How do models look at earlier "
            "tokens? | How does attention choose values?"
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
            "in attention? | What are queries, keys and values for? | What is a key and a value? | What is "
            "the V in KV? | What is KV? | What is a key for? | What is a query compared with? | What do "
            "keys do? | What do values do? | What does a key do? | What does a value do? | What does a "
            "value pass on? | What does a query do?"
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
            "Do you read letters? | In which pieces do you read text? | What does a model read and write? | "
            "What are tokens? | What is a text token? | Is a token a letter? | Is a token a piece of text? "
            "| Does a token have a length? | How big is a token? | How many letters has a token? | What do "
            "you read? | What do you write? | Do you read letters or tokens? | Do you read words? | What "
            "pieces does a model read? | What is a piece of text called?"
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
            "text become numbers? | What are tokenizers? | What does the tokenizer do? | What is "
            "tokenization? | How does the tokenizer work? | Why is there a tokenizer? | What is a tokenizer "
            "for? | How do letters become tokens? | What turns text into tokens? | What turns tokens into "
            "text? | How do numbers become text again? | How does text become numbers?"
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
            "quantising do? | How do I make the cache smaller? | What is the price of quantisation? | What "
            "is quantisation? | What does quantisation mean? | What does quantisation do? | What is KV "
            "quantisation? | How are keys and values quantised? | How many bits does a quantised cache use? "
            "| Why is a quantised cache approximate? | Why is a quantised cache smaller? | How can the "
            "cache be smaller? | Can the cache use 8 bits? | Can I use fewer bits? | Is a quantised cache "
            "exact? | What do fewer bits cost?"
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
            "ShadowKV? | Where are the values in ShadowKV? | What is the shadow cache? | What does ShadowKV "
            "keep on the device? | Where are the keys in ShadowKV? | Why does ShadowKV save memory? | What "
            "is ShadowKV good for? | Which chunks does ShadowKV fetch? | How many chunks does ShadowKV "
            "fetch? | Is ShadowKV sparse?"
        ),
    ),
)
