# SPDX-License-Identifier: Apache-2.0
"""Bad input: exit status 2 and one line that says what was wrong; never a traceback."""

import importlib.util
import json
import re

import pytest

from tf_subjectdp import cli
from tf_subjectdp.cli import main
from tf_subjectdp.cli.options import COMMANDS, OPTIONS, flag, takes

_OPTION = re.compile(r"--[a-z][a-z-]*")

ASK = "epsilon --algorithm itemdp --q 0.02 --items-per-subject 7 --noise 3 --delta 1e-5"
PLAN = (
    "plan --algorithm higradavg --batch 20 --items 1000 --subjects 200 "
    "--items-per-subject 9 --epochs 2 --noise 8 --delta 1e-5"
)
COMPARE = "compare --epsilon 3 --delta 1e-5 --batch 40 --epochs 2"
DATA = "--items 900 --subjects 9 --items-per-subject 100"
PARTS = "epsilon --algorithm batchclipping --delta 1e-5 --noise 3 --steps 5"
MIXED = (
    "epsilon --q 0.1 --algorithm mixedclipping --items-per-subject 3 --noise 3 --steps 5 "
    "--delta 1e-5"
)
PLANNED = (
    "plan --batch 5 --items 50 --subjects 20 --algorithm mixedclipping "
    "--items-per-subject 3 --noise 3 --steps 5 --delta 1e-5"
)
ELEMENTS = "epsilon --algorithm elementdp --noise 3 --steps 5 --delta 1e-5"
OF_ELEMENTS = (
    "plan --algorithm elementdp --expected-subjects 20 --items 4000 --subjects 200 "
    "--items-per-subject 40 --steps 20 --noise 3"
)
FIGURES = "plan --algorithm higradavg --batch 20 --items 1000"
RUN = "--noise 3 --steps 10 --delta 1e-5"
STEP = "--noise 1 --delta 1e-5 --steps 1"
FEW = "--items 100 --subjects 20 --items-per-subject 50"
Q = "--q 0.02 --items-per-subject 7"
WHOLE = "--items 4000 --subjects 200 --items-per-subject 40 --steps 20 --noise 3"

#: Of each line, what the one line of its error says; TABLE is a file of ids.
BAD = {
    "": "required: COMMAND",
    "epsilonn": "invalid choice: 'epsilonn'",
    "epsilon": "required: --algorithm",
    f"{ASK} --steps 10 --what": "unrecognized arguments: --what",
    f"{ASK} --step 10": "unrecognized arguments: --step",
    f"{ASK} --steps ten": "'ten' is not a whole number",
    f"{ASK} --steps 1.5": "'1.5' is not a whole number",
    f"{ASK} --steps 0": "--steps is 0",
    f"{ASK} --steps 1e300": "not a whole number",
    f"{ASK} --epochs -1": "--epochs is -1",
    f"{ASK} --epochs nan": "not a finite number",
    f"{ASK}": "the length is missing",
    f"{ASK} --steps 10 --epochs 2": "--steps and --epochs contradict",
    f"{ASK} --steps 10 --rounds 2": "--steps and --rounds contradict",
    f"{ASK} --steps 10 --cap 2": "--cap is for groupdp or centralgroup or sampling",
    f"{ASK} --steps 10 --elements 2": "--elements is for elementdp",
    f"{ASK} --steps 10 --unit element": "promises nothing to one element",
    f"{ASK} --steps 10 --unit people": "'people' is unknown; choose one of",
    f"{ASK} --steps 10 --batch 20": "--q and --batch contradict",
    f"{ASK} --steps 10 --p 0.1": "--q and --p contradict",
    f"{ASK} --steps 10 --items 100": "--q is a rate already",
    f"{ASK} --steps 10 --sampling shuffle": "sampling shuffle needs --batch, not --q",
    f"{ASK} --steps 10 --sampling poisson-subjects": "needs --p",
    f"{ASK} --steps 10 --cap-data 3": "--items-per-subject and --cap-data contradict",
    f"{ASK} --steps 10 --column id": "--column needs --ids",
    f"{ASK} --steps 10 --silos-per-subject 2": "--silos-per-subject needs --silos",
    f"{ASK} --steps 10 --view average": "--view needs --silos",
    f"{ASK} --steps 10 --silos 2 --silos-per-subject 3": "above --silos 2",
    f"{ASK} --steps 10 --silos 0": "--silos is 0",
    f"{ASK} --steps 10 --ids x.csv --column id": "contradict",
    f"{ASK} --steps 10 --engine fast": "'fast' is unknown; choose one of pld, rdp",
    f"epsilon --algorithm magic --q 0.1 {STEP}": "'magic' is unknown",
    f"epsilon --algorithm itemdp --q 0.1 {STEP}": "--items-per-subject K .* is missing",
    f"epsilon --algorithm itemdp {STEP}": "the sampling is missing",
    f"epsilon --algorithm itemdp --unit item --q 1.5 {STEP}": "--q is 1.5: a probability",
    "epsilon --algorithm itemdp --unit item --q 0.1 --noise -1 --delta 1e-5 --steps 1": (
        r"--noise -1\.0 must be finite and at least 0\."
    ),
    "epsilon --algorithm itemdp --unit item --q 0.1 --noise 1 --delta 2 --steps 1": (
        "delta must be in"
    ),
    f"epsilon --algorithm itemdp --unit item --batch 20 {STEP}": "--batch needs --items",
    f"epsilon --algorithm itemdp --unit item --batch 20 --items 9 {STEP}": "batch above the data",
    f"epsilon --algorithm itemdp --unit item --sampling fixed-size --batch 2.5 --items 9 {STEP}": (
        r"--batch is 2\.5 \(float\): pass a whole number >= 1"
    ),
    f"epsilon --algorithm elementdp --q 0.1 {STEP}": "--items-per-element K",
    f"epsilon --algorithm element-subject --p 0.1 {STEP}": (
        "elementdp without --elements promises nothing to a whole"
    ),
    f"epsilon --algorithm centralgroup {Q} {STEP}": "needs --silos",
    f"epsilon --algorithm centralgroup {Q} --silos 2 --view updates {STEP}": "contradicts",
    "epsilon --algorithm userldp --noise 1 --delta 1e-5 --epochs 2": "an epoch has no length",
    f"noise --algorithm itemdp {Q} --delta 1e-5 --steps 9 --epsilon 0": "epsilon must be finite",
    f"noise --algorithm itemdp {Q} --delta 0 --steps 9 --epsilon 1": r"delta must be in \(0, 1\)",
    f"rounds --algorithm itemdp {Q} --delta 1e-5 --epsilon -1 --noise 2": "epsilon must be finite",
    f"{PLAN} --epsilon 2": "exactly one of --epsilon .* and --noise",
    f"{PLAN} --steps 3": "--steps and --epochs contradict each other: give one",
    f"{PLAN} --cap 2": "--cap is for groupdp or sampling poisson-subjects, not for",
    f"{PLAN} --clip-norm 0": r"--clip-norm 0\.0 must be finite and above 0\.",
    f"{PLAN} --silo-column h": r"unrecognized arguments: --silo-column h \(see 'subjectdp",
    f"{PLAN} --save /nowhere/plan.json": "No such file or directory",
    f"{FIGURES} --items-per-subject 9 --epochs 2 --noise 8 --delta 1e-5": "--subjects is missing",
    f"{FIGURES} --subjects 200 --items-per-subject 9 --epochs 2 --epsilon 2": (
        r"epsilon needs --delta, e\.g\. --delta 1e-5: the promise has"
    ),
    f"{FIGURES} --subjects 200 --items-per-subject 2 --epochs 2 --noise 8 --delta 1e-5": (
        "--items-per-subject 2 is too small"
    ),
    "statement": "say --plan FILE, --model FILE, or the options",
    "statement --plan /nowhere.json": "/nowhere.json: No such file or directory",
    "statement --plan x.json --noise 3": "--plan and --noise contradict",
    "statement --ledger x.json": "--ledger needs --plan",
    f"{COMPARE}": "--items, --subjects, --items-per-subject are missing",
    f"{COMPARE} {DATA} --steps 3": "contradict",
    f"{COMPARE} {DATA} --cap 0": "--cap is 0",
    f"{COMPARE} --items 30 --subjects 9 --items-per-subject 10": "batch above the data",
    f"{COMPARE} {DATA} --silos-per-subject 2": "needs --silo-column",
    f"{PARTS} --p 0.1 --items-per-subject 3": (
        "batchclipping with poisson-subjects has no proven guarantee"
    ),
    f"{PARTS} --r 0.1": "batchclipping with poisson-elements has no proven guarantee",
    f"{PARTS} --q 0.1 --items-per-subject 3 --parts 2": (
        "--parts is for mixedclipping, not for batchclipping"
    ),
    f"{PARTS} --q 0.1 --items-per-subject 3 --cap 2": (
        "--cap is for groupdp or centralgroup or sampling"
    ),
    f"{PARTS} --q 0.1 --items-per-subject 3 --elements 2": "--elements is for elementdp",
    f"{PARTS} --q 0.1 --items-per-subject 3 --unit element": "promises nothing to one element",
    f"{PARTS} --q 0.1 --unit silo": "promises nothing to one silo",
    f"{PARTS}": "the sampling is missing: say --q or --batch",
    f"{PARTS} --q 0.1 --unit item --keep-probability 0.5": (
        "--keep-probability is for sampling shuffle, not for"
    ),
    f"{PARTS} --sampling shuffle --batch 5 --items 50 --unit item --keep-probability 0": (
        "above 0 and at most 1"
    ),
    f"{PARTS} --sampling shuffle --batch 5 --items 50 --unit item --keep-probability 2": (
        "above 0 and at most 1"
    ),
    f"{PARTS} --sampling shuffle --batch 5 --items 50 --unit item --keep-probability x": (
        "'x' is not a number"
    ),
    f"{MIXED}": "--parts is missing: it must be a whole number of at least",
    f"{MIXED} --parts 0": "--parts is 0: it must be at least 1",
    f"{MIXED} --parts -3": "--parts is -3",
    f"{MIXED} --parts 2.5": "'2.5' is not a whole number",
    f"{MIXED} --parts 99999999999999999999": "argument --parts",
    f"{PLANNED}": "--parts is missing: it must be a whole number of at least",
    f"{PLANNED} --parts 0": "--parts is 0: it must be at least 1",
    f"{PLANNED} --parts -3": "--parts is -3",
    f"{PLANNED} --parts 2.5": "'2.5' is not a whole number",
    f"{PLANNED} --parts 99999999999999999999": "argument --parts",
    f"{ELEMENTS}": "the sampling is missing",
    f"{ELEMENTS} --q 0.1 --items-per-element 0": "--items-per-element is 0",
    f"{ELEMENTS} --q 0.1 --items-per-element 1.5": "'1.5' is not a whole number",
    f"{ELEMENTS} --r 0.1 --elements 0": "--elements is 0",
    f"{ELEMENTS} --r 0": "--r is 0: a probability",
    f"{ELEMENTS} --r 1.5": "--r is 1.5: a probability",
    f"{ELEMENTS} --r nan": "not a finite number",
    f"{ELEMENTS} --r 0.1 --q 0.1": "--q and --r contradict",
    f"{ELEMENTS} --r 0.1 --p 0.1": "--p and --r contradict",
    f"{ELEMENTS} --r 0.1 --expected-elements 5": "--r and --expected-elements contradict",
    f"{ELEMENTS} --r 0.1 --elements-in-all 5": "--elements-in-all needs --expected-elements",
    f"{ELEMENTS} --expected-elements 5": "--expected-elements needs --elements-in-all N",
    f"{ELEMENTS} --expected-elements 5 --elements-in-all 2": "batch above the data",
    f"{ELEMENTS} --expected-elements 5 --elements-in-all 0": "--elements-in-all is 0",
    f"{ELEMENTS} --expected-elements 0 --elements-in-all 5": "--expected-elements is 0",
    f"{ELEMENTS} --expected-elements -1 --elements-in-all 5": "--expected-elements is -1",
    f"{ELEMENTS} --sampling poisson-elements --q 0.1": "poisson-elements needs --r or .* not --q",
    f"{ELEMENTS} --sampling poisson-elements": "poisson-elements needs --r",
    f"{ELEMENTS} --sampling poisson-items --r 0.1": "poisson-items needs --q",
    f"{ELEMENTS} --sampling shuffle --batch 5 --items 100": (
        "elementdp with shuffle has no proven guarantee for one"
    ),
    f"{ELEMENTS} --sampling fixed-size --batch 5 --items 100": (
        "elementdp with fixed-size has no proven guarantee for one"
    ),
    f"{ELEMENTS} --p 0.1 --cap-data 4": "leave out --cap-data and use --elements M",
    f"{ELEMENTS} --p 0.1 --cap 4": "leave out --cap and use --elements M --items-per-element K",
    f"{ELEMENTS} --p 0.1 --unit silo": "promises nothing to one silo",
    f"{ELEMENTS} --p 0.1 --parts 3": "--parts is for mixedclipping, not for elementdp",
    f"{ELEMENTS} --expected-elements 5 --ids x.csv --column id": "No such file",
    f"{OF_ELEMENTS} --unit subject": "elementdp without --elements promises nothing to a whole",
    f"{OF_ELEMENTS} --elements 0": r"--elements is 0: it must be at least 1 \(see 'subjectdp",
    f"{OF_ELEMENTS} --cap 3": "a cap on the items of a subject lets a change of one",
    f"{OF_ELEMENTS} --sampling poisson-elements": "argument --sampling",
    f"{OF_ELEMENTS} --sampling shuffle": "sampling shuffle needs --batch, not --expected-subjects",
    f"{OF_ELEMENTS} --parts 3": "--parts is for mixedclipping",
    f"plan --algorithm elementdp --batch 20 {WHOLE}": "a plan of elementdp samples subjects here",
    f"plan --algorithm elementdp --expected-subjects 20 {WHOLE}".replace(
        "items-per-subject", "cap-data"
    ): ("a cap on the items"),
    f"plan --algorithm subjectdp --expected-subjects 20 {WHOLE} --elements 3": (
        "--elements is for elementdp"
    ),
    f"plan --algorithm subjectdp --expected-subjects 20 {WHOLE} --unit element": (
        "knows no elements"
    ),
    "epsilon --algorithm itemdp --q 0.1 --items-per-element 3 --noise 3 --steps 5 --delta 1e-5": (
        "--items-per-element is for elementdp"
    ),
    f"epsilon --algorithm itemdp --ids TABLE --column id {RUN}": "--batch or --expected-subjects",
    f"plan --algorithm itemdp --subjects 20 {RUN}": "missing: say --batch or --expected-subjects",
    f"plan --algorithm elementdp --items 100 {RUN}": "missing: say --expected-subjects",
    f"plan --algorithm batchclipping {RUN}": "missing: say --batch",
    f"epsilon --algorithm itemdp --sampling shuffle {RUN}": "shuffle needs --batch",
    f"epsilon --algorithm itemdp --p 0.1 --sampling fixed-size {RUN}": "needs --batch, not --p",
    f"epsilon --algorithm itemdp --q 0.1 --sampling fixed-size {RUN}": (
        "sampling fixed-size needs --batch, not --q"
    ),
    f"plan --algorithm itemdp --batch 5 --sampling poisson-subjects {RUN}": (
        "needs --expected-subjects, not --batch"
    ),
    f"epsilon --algorithm elementdp --r 0.1 --sampling shuffle {RUN}": (
        "sampling shuffle needs --batch, not --r"
    ),
    f"epsilon --algorithm itemdp --r 0.1 {RUN}": (
        "itemdp with poisson-elements has no proven guarantee for"
    ),
    f"plan --algorithm batchclipping --expected-subjects 5 {RUN}": (
        "--items, --subjects, --items-per-subject are missing"
    ),
    f"epsilon --algorithm centralgroup --p 0.1 --items 100 {RUN}": (
        "samples items: say --q or --batch"
    ),
    f"epsilon --algorithm centralgroup --p 0.1 --sampling poisson-subjects {RUN}": (
        "leave out --sampling poisson-subjects"
    ),
    f"epsilon --algorithm elementdp --r 0.1 --ids TABLE --column id {RUN}": "leave it out",
    f"epsilon --algorithm itemdp --p 0.1 --ids TABLE --column id {RUN}": (
        "--ids and --p contradict each other: give one"
    ),
    f"epsilon --algorithm itemdp --p 0.1 --subjects 9 --cap-data 2 {RUN}": (
        "leave out --subjects, or say --expected-subjects instead"
    ),
    f"epsilon --algorithm itemdp --expected-subjects 5 --items-per-subject 2 {RUN}": (
        "--expected-subjects needs --subjects N, how many there are"
    ),
    f"plan --algorithm itemdp --batch 5 --items 9 --ids TABLE --column id {RUN}": (
        "--ids and --items contradict each other: give one"
    ),
    f"epsilon --algorithm userldp --p 0.1 --unit element {RUN}": "--unit subject or item or silo",
    f"plan --algorithm itemdp --q 0.1 {RUN}": "unrecognized arguments: --q 0.1 .*",
    f"{ELEMENTS} --p 0.1 --cap 4 --elements 2": "leave out --cap and use --items-per-element K",
    f"plan --algorithm itemdp --batch 5 {FEW} --noise 3": (
        "give exactly one of --epochs and --steps"
    ),
}


def refused(capsys, words):
    status = main(words)
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("subjectdp: error: ")
    return line


@pytest.mark.parametrize("words", BAD, ids=lambda words: words or "nothing")
def test_bad_input_is_status_two_and_one_clear_line(capsys, tmp_path, words):
    table = tmp_path / "t.csv"
    table.write_text("id,x\na,1\nb,2\n")
    line = refused(capsys, words.replace("TABLE", str(table)).split())
    assert re.search(BAD[words], line)
    # The remedy is never an option that was given, and an error names options of its command only.
    given, named = set(_OPTION.findall(words)), set(_OPTION.findall(re.sub("'.*?'", "", line)))
    remedy = re.search(r"(?:say|use|pass|needs) (?!exactly)([^;]*?)(?:, not .*)?$", line)
    wanted = set() if remedy is None else set(_OPTION.findall(remedy[1]))
    assert not wanted & given
    if words.split()[:1] and words.split()[0] in COMMANDS:
        own = {flag(one.name) for one in OPTIONS if takes(words.split()[0], one.name)}
        assert named <= own | given


TABLES = {
    "no column": ("name,silo\na,x\n", "there is no column 'id'; the columns are 'name', 'silo'"),
    "missing": ("id,silo\na,x\n,y\n", "row 2 .* has no id in column 'id'"),
    "missing silo": ("id,silo\na,x\nb,\n", "row 2 .* has no id in column 'silo'"),
    "twice": ("id,id,silo\na,a,x\n", "column 'id' is there 2 times"),
    "nobody": ("id,silo\n", "no rows"),
    "nothing": ("", "is empty"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_bad_table_is_status_two_and_one_clear_line(capsys, tmp_path, name):
    text, words = TABLES[name]
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    line = refused(
        capsys, [*COMPARE.split(), "--ids", str(path), *"--column id --silo-column silo".split()]
    )
    assert re.search(words, line)


def test_files_that_are_not_what_they_are_called(capsys, tmp_path):
    words = [*COMPARE.split(), "--column", "id", "--ids"]
    assert "No such file" in refused(capsys, [*words, str(tmp_path / "none.csv")])
    assert "Is a directory" in refused(capsys, [*words, str(tmp_path)])
    parquet = tmp_path / "t.parquet"
    parquet.write_bytes(b"PAR1 and nothing more")
    wanted = (
        "cannot be read as a Parquet file"
        if importlib.util.find_spec("pyarrow")
        else "tf-subjectdp[tables]"
    )
    assert wanted in refused(capsys, [*words, str(parquet)])
    broken = tmp_path / "plan.json"
    for text, wanted in (("{", "no JSON file"), ("[]", "no plan"), ("[" * 10**5, "no JSON file")):
        broken.write_text(text)
        assert wanted in refused(capsys, ["statement", "--plan", str(broken)])


def test_names_of_the_user_are_not_taken_for_arguments(capsys, tmp_path):
    path = tmp_path / "steps=3" / "Shuffle.csv"
    path.parent.mkdir()
    path.write_text("noise_multiplier,x\na,1\n")
    line = refused(capsys, [*COMPARE.split(), "--ids", str(path), "--column", "n_items"])
    assert "no column 'n_items'; the columns are 'noise_multiplier', 'x'" in line
    broken = path.with_name("Shuffle.parquet")
    broken.write_bytes(b"PAR1 and nothing more")
    line = refused(capsys, [*COMPARE.split(), "--ids", str(broken), "--column", "n_items"])
    assert str(broken) in line or not importlib.util.find_spec("pyarrow")


def test_a_silo_smaller_than_the_batch_is_named(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,silo\n" + "a,big\n" * 50 + "b,small\n" * 5, encoding="utf-8")
    line = refused(
        capsys, [*COMPARE.split(), "--ids", str(path), *"--column id --silo-column silo".split()]
    )
    assert "silo 'small': batch above the data" in line


def test_a_promise_on_silos_that_the_table_breaks_is_refused(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,silo\n" + "a,x\na,y\nb,x\n" * 50, encoding="utf-8")
    words = [*COMPARE.split(), "--ids", str(path), *"--column id --silo-column silo".split()]
    assert "a subject of the table is in 2 silos" in refused(
        capsys, [*words, "--silos-per-subject", "1"]
    )


def test_ctrl_c_is_status_130(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("tf_subjectdp.cli.ask.epsilon", interrupted)
    assert main([*ASK.split(), "--steps", "10"]) == 130
    assert capsys.readouterr() == ("", "")


def test_warnings_of_the_library_are_notes_below_the_answer(capsys):
    words = PLAN.replace("1e-5", "0.1").split()
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("algorithm")
    (line,) = err.splitlines()
    assert line.startswith("subjectdp: note: delta=0.1 is not below 1 / subjects")
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["delta"] == 0.1


def test_the_handler_of_notes_does_not_stay(capsys):
    import logging

    before = list(logging.getLogger("tf_subjectdp").handlers)
    main(["--version"])
    assert logging.getLogger("tf_subjectdp").handlers == before
    assert cli.__all__ == ["main"]
    assert capsys.readouterr().out.startswith("subjectdp ")
