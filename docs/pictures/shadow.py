"""Draw a long document that is looked at through a shadow: the real interface, engine and starter.

    python docs/pictures/shadow.py

A document with codes in it is attached and read exactly. One picture shows what is asked before the shadow is
taken, one what each layer keeps of it while the codes are asked for; the sessions of the run are thrown away.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from make import Person, draw

from kvchat.session.template.tokenizer import read_tokenizer
from tools.starter.probes import Prober
from tools.starter.recall_suite import DEPTHS
from tools.starter.tokenizer import letter_pieces
from tools.starter.words import Lexicon

STARTER = Path(__file__).parents[2] / "kvchat" / "starter" / "model"
FORMAT = "shadow:25%:forced"
NAME = "document.txt"
LENGTH = 5000
"""Tokens of the document."""


def write_document(directory: Path) -> Sequence[str]:
    """Write the document, and return the questions for its codes."""
    tokenizer = read_tokenizer(STARTER / "tokenizer.json")[0]
    lexicon = Lexicon(pieces=letter_pieces(tokenizer))
    prober = Prober(lexicon, lambda text: len(tokenizer.encode(text).ids))
    needles = prober.needles(random.Random(1), LENGTH, DEPTHS)
    (directory / NAME).write_text(needles.context[0].text)
    return [question.text for question, _ in needles.questions]


async def play(person: Person, questions: Sequence[str]) -> None:
    await person.types(f"@{NAME}")
    await person.presses("tab")
    await person.waits_for("tokens, read")
    await person.says("Read this.")
    await person.commands("/title A long document")
    await person.says(questions[0])
    await person.commands(f"/cache format {FORMAT}")
    await person.waits_for(f"Store the KV of all open conversations as {FORMAT}?")
    await person.looks("shadow-cost")
    await person.presses("y")
    await person.hears("/cache format exact goes back")
    await person.waits_for_the_model()
    for question in questions:
        await person.says(question)
    await person.presses("f4")
    await person.looks("shadow")


def main() -> None:
    with TemporaryDirectory(prefix="kvchat-pictures-") as home:
        questions = write_document(Path(home))
        os.chdir(home)
        asyncio.run(draw(None, Path(home), lambda person: play(person, questions)))


if __name__ == "__main__":
    main()
