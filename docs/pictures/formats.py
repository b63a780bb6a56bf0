"""Draw a conversation that is converted to `int4` and back: the real interface, engine and starter.

    python docs/pictures/formats.py

Pictures show what is asked first, the conversation in its new format, and the one that is exact again; the
sessions of the run are thrown away.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from make import TALK, Person, draw


async def play(person: Person) -> None:
    for message in TALK[:7]:
        await person.says(message)
    await person.commands("/title A conversation in fewer bits")
    await person.commands("/cache format int4")
    await person.waits_for("Store the KV of all open conversations as int4?")
    await person.looks("format-cost")
    await agree(person, "/cache format exact goes back")
    await person.says("What is my name?")
    await person.looks("format-int4")
    await person.commands("/cache format exact")
    await person.waits_for("What is computed again")
    await agree(person, "computed exactly again")
    await person.says("What is a fork?")
    await person.looks("format-exact")


async def agree(person: Person, told: str) -> None:
    """Say yes, and wait until that is done and the engine is there again."""
    await person.presses("y")
    await person.hears(told)
    await person.waits_for_the_model()


def main() -> None:
    with TemporaryDirectory(prefix="kvchat-pictures-") as home:
        asyncio.run(draw(None, Path(home), play))


if __name__ == "__main__":
    main()
