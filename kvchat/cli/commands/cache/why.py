"""`kvchat cache why`: why an answer computed what it did. Reads a tokenizer and loads no model."""

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

from kvchat.app.model_location import located
from kvchat.app.open_store import open_store
from kvchat.cli.output.streams import tell
from kvchat.cli.parser.options import SessionOptions, model_option
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.errors import UsageError
from kvchat.session.cache_miss import explain
from kvchat.session.explanation import explained
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Role
from kvchat.text.cache_miss import why_words


@option_class
class WhyOptions(SessionOptions):
    number: Annotated[int, Argument(help="Answers from the end.", metavar="[N]", min=1)] = 1
    branch: Annotated[
        str | None, Option(help="Of this branch; else of the one used last.", metavar="NAME")
    ] = None
    model: Annotated[str | None, model_option("Whose tokenizer to read; else the answer's.")] = None


def explain_answer(options: WhyOptions) -> None:
    """Say why an answer computed what it did, with the first token that differs."""
    settings = options.settings()
    with closing(open_store(settings)) as store:
        session = store.find(options.session)
        branch = store.branch(session.id, options.branch or session.active_branch)
        answers = [turn for turn in store.turns_to(branch.leaf_id) if turn.role is Role.ASSISTANT]
        if options.number > len(answers):
            raise UsageError(f"there is no answer {options.number} from the end to explain")
        answer = answers[-options.number]
        explain(store.all_turns(session.id), answer)  # refused before a model is looked for
        model = options.model or answer.model or session.model or settings.model
        location = located(settings, model)
        explanation = explained(store, ChatTemplate.from_dir(location.path), session, answer)
    texts = {f"{side}_text": getattr(explanation, side) for side in ("shared", "here", "there")}
    values = {"session": session.id, "turn": answer.id} | asdict(explanation.miss) | texts
    tell(options, values, why_words(explanation))
