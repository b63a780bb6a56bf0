import pytest

from kvchat.errors import SessionAmbiguous, SessionNotFound
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN
from tests.session.conftest import plain_and_encrypted
from tests.session.turns import begin_answer, exchange, question

pytestmark = pytest.mark.pure


def test_a_session_is_found_by_id_title_and_unique_prefixes(store: SessionStore) -> None:
    session = store.create_session(title="Trip to Oslo")
    store.create_session(title="Proof reading")
    for reference in (session.id, "Trip to Oslo", session.id[:4], session.id[:6], "Trip", "trip to"):
        assert store.find(reference).id == session.id


def test_an_id_comes_before_a_title_and_a_title_before_a_prefix(store: SessionStore) -> None:
    first = store.create_session(title="plain")
    named_like_it = store.create_session(title=first.id)
    named_like_prefix = store.create_session(title=first.id[:4])
    longer = store.create_session(title="plainer")
    assert store.find(first.id).id == first.id
    assert store.find(first.id[:4]).id == named_like_prefix.id
    assert store.find("plain").id == first.id
    assert store.find("plaine").id == longer.id
    assert named_like_it.id != first.id


def test_an_ambiguous_prefix_lists_its_candidates(store: SessionStore) -> None:
    first, second = store.create_session(title="kv notes"), store.create_session(title="kv cache")
    with pytest.raises(SessionAmbiguous) as caught:
        store.find("kv")
    assert first.id in str(caught.value)
    assert second.id in str(caught.value)


def test_equal_titles_made_from_first_messages_are_ambiguous(store: SessionStore) -> None:
    for _ in range(2):
        session = store.create_session()
        store.add_turns(store.branch(session.id, MAIN), (question(session.id, "Hello"),))
    with pytest.raises(SessionAmbiguous):
        store.find("Hello")


def test_a_misspelt_name_is_answered_with_similar_ones(store: SessionStore) -> None:
    store.create_session(title="Trip to Oslo")
    with pytest.raises(SessionNotFound, match="did you mean 'Trip to Oslo'"):
        store.find("trip to olso")


@pytest.mark.parametrize("reference", ["", "abc", "%", "'; DROP TABLE turns; --", "\x00"])
def test_nonsense_names_no_session(store: SessionStore, reference: str) -> None:
    store.create_session(title="demo")
    with pytest.raises(SessionNotFound, match=r"sessions list|did you mean"):
        store.find(reference)


def test_the_list_has_the_last_used_first_with_what_is_in_it(store: SessionStore) -> None:
    first = store.create_session(title="first")
    store.create_session(title="second")
    branch = exchange(store, store.branch(first.id, MAIN), "What?", "That\nthing", ids=[1] * 10)
    _, answer = begin_answer(store, branch, "And?")
    store.append_to_answer(answer.id, [1, 2], "half")
    store.create_branch(first.id, leaf_id=None)
    one, two = store.list_sessions()
    assert (one.session.title, two.session.title) == ("first", "second")
    assert (one.num_turns, one.num_tokens, one.num_branches, one.excerpt) == (4, 18, 2, "And?")
    assert (two.num_turns, two.num_tokens, two.num_branches, two.excerpt) == (0, 0, 1, "")


@plain_and_encrypted
def test_search_finds_words_in_questions_and_finished_answers_only(store: SessionStore) -> None:
    session = store.create_session(title="trip")
    branch = exchange(store, store.branch(session.id, MAIN), "Where is Göteborg?", "On the west coast")
    _, answer = begin_answer(store, branch, "more")
    store.append_to_answer(answer.id, [1], "unfinished words")
    assert [hit.excerpt for hit in store.search("gote")] == ["Where is Göteborg?"]
    assert [(hit.session_id, hit.title) for hit in store.search("coast WEST")] == [(session.id, "trip")]
    assert store.search("coast east") == ()
    assert store.search("unfinished") == ()


@plain_and_encrypted
@pytest.mark.parametrize("text", ["", '"', "*", "NEAR(", "a OR", "(", "^x", "text:x", "-", "''", "\x00"])
def test_what_a_person_types_is_never_query_syntax(store: SessionStore, text: str) -> None:
    session = store.create_session()
    exchange(store, store.branch(session.id, MAIN), "hello", "yes")
    assert store.search(text) == ()
