"""What is taken at load answers as transformers does, whatever its architecture; the rest is refused.

A case is a tiny model of one class; see `benchmarks.models.survey` for what is compared.
"""

import pytest

from benchmarks.models.configs import all_cases, find_case
from benchmarks.models.survey import survey

pytestmark = pytest.mark.cpu

EXACT = {
    "Llama4ForCausalLM (temperature tuning)": ("attention", "2 chunked, 2 full"),
    "PhimoeForCausalLM": ("attention", "4 full"),
    "GptOssForCausalLM": ("attention", "2 sliding, 2 full"),
    "StableLmForCausalLM": ("attention", "4 full"),
    "Gemma4ForCausalLM": ("attention", "2 sliding, 2 full, 2 borrowed"),
    "Phi3ForCausalLM (rope longrope)": ("attention", "4 full"),
    "DeepseekV3ForCausalLM (rope yarn)": ("latent", "4 latent"),
    "FalconForCausalLM (alibi)": ("cache", "4 full"),
    "GPTJForCausalLM": ("cache", "4 full"),
    "BloomForCausalLM": ("cache", "4 full"),
    "MiniMaxForCausalLM": ("attention", "2 full, 2 recurrent"),
    "RwkvForCausalLM": ("attention", "4 recurrent"),
    "RecurrentGemmaForCausalLM": ("attention", "1 sliding, 3 recurrent"),
}
"""One of each way to differ; all of them are among the slow tests."""
REFUSED = {
    "DeepseekV32ForCausalLM": "index that selects tokens",
    "DeepseekV4ForCausalLM": "layers of its own cache",
    "XLNetLMHeadModel": "something other than keys and values",
}


@pytest.mark.parametrize("name", EXACT)
def test_batches_chunks_prefix_hits_forks_and_restarts_answer_as_transformers_does(name: str) -> None:
    """Traps 15 to 18 and 33, by architecture."""
    finding = survey(find_case(name))
    assert (finding.outcome, finding.reason) == ("exact", "")
    assert (finding.route, finding.groups) == EXACT[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_keeps_more_than_keys_and_values_is_refused_with_what_it_keeps(name: str) -> None:
    finding = survey(find_case(name))
    assert finding.outcome == "refused"
    assert REFUSED[name] in finding.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in all_cases()])
def test_no_architecture_of_transformers_is_answered_wrong(name: str) -> None:
    assert survey(find_case(name)).outcome in ("exact", "refused", "not built")
