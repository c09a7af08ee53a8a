# SPDX-License-Identifier: Apache-2.0
"""Bad input: exit status 2 and one line that says what was wrong; never a traceback."""

import importlib.util
import json
import re

import pytest

from tf_subjectdp import cli
from tf_subjectdp.cli import main

Q = "--q 0.02 --items-per-subject 7"
ASK = f"epsilon --algorithm itemdp {Q} --noise 3 --delta 1e-5"
PLAN = (
    "plan --algorithm higradavg --batch 20 --items 1000 --subjects 200 --items-per-subject 9 "
    "--epochs 2 --noise 8 --delta 1e-5"
)
COMPARE = "compare --epsilon 3 --delta 1e-5 --batch 40 --epochs 2"

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
    f"{ASK} --steps 10 --cap 2": "--cap has no meaning for itemdp",
    f"{ASK} --steps 10 --elements 2": "--elements is for elementdp",
    f"{ASK} --steps 10 --unit element": "promises nothing to one element",
    f"{ASK} --steps 10 --unit people": "'people' is unknown; choose one of",
    f"{ASK} --steps 10 --batch 20": "--q and --batch contradict",
    f"{ASK} --steps 10 --p 0.1": "--q and --p contradict",
    f"{ASK} --steps 10 --items 100": "--q is a rate already",
    f"{ASK} --steps 10 --sampling shuffle": "no rate of its own: say --batch",
    f"{ASK} --steps 10 --sampling poisson-subjects": "needs --p",
    f"{ASK} --steps 10 --cap-data 3": "--items-per-subject and --cap-data contradict",
    f"{ASK} --steps 10 --column id": "--column needs --ids",
    f"{ASK} --steps 10 --silos-per-subject 2": "--silos-per-subject needs --silos",
    f"{ASK} --steps 10 --view average": "--view needs --silos",
    f"{ASK} --steps 10 --silos 2 --silos-per-subject 3": "above --silos 2",
    f"{ASK} --steps 10 --silos 0": "--silos is 0",
    f"{ASK} --steps 10 --ids x.csv --column id": "contradict",
    f"{ASK} --steps 10 --ids x.csv": "--ids needs --column",
    f"{ASK} --steps 10 --engine fast": "'fast' is unknown; choose one of pld, rdp",
    "epsilon --algorithm magic --q 0.1 --noise 1 --delta 1e-5 --steps 1": "'magic' is unknown",
    "epsilon --algorithm itemdp --q 0.1 --noise 1 --delta 1e-5 --steps 1": (
        "--items-per-subject K .* is missing"
    ),
    "epsilon --algorithm groupdp --p 0.1 --noise 1 --delta 1e-5 --steps 1": "is missing",
    "epsilon --algorithm higradavg --p 0.1 --cap 3 --noise 1 --delta 1e-5 --steps 1": "is missing",
    "epsilon --algorithm itemdp --noise 1 --delta 1e-5 --steps 1": "the sampling is missing",
    "epsilon --algorithm itemdp --unit item --q 1.5 --noise 1 --delta 1e-5 --steps 1": (
        "--q is 1.5: a probability"
    ),
    "epsilon --algorithm itemdp --unit item --q 0.1 --noise -1 --delta 1e-5 --steps 1": (
        "noise_multiplier=-1.0 must be finite and at least 0"
    ),
    "epsilon --algorithm itemdp --unit item --q 0.1 --noise 1 --delta 2 --steps 1": (
        "delta must be in"
    ),
    "epsilon --algorithm itemdp --unit item --batch 20 --noise 1 --delta 1e-5 --steps 1": (
        "--batch needs --items"
    ),
    "epsilon --algorithm itemdp --unit item --batch 20 --items 9 --noise 1 --delta 1e-5 --steps 1": (
        "batch above the data"
    ),
    "epsilon --algorithm itemdp --sampling fixed-size --batch 2.5 --items 9 --items-per-subject 2 "
    "--noise 1 --delta 1e-5 --steps 1": "whole number of items",
    "epsilon --algorithm elementdp --q 0.1 --noise 1 --delta 1e-5 --steps 1": (
        "--items-per-element K is missing"
    ),
    "epsilon --algorithm element-subject --p 0.1 --noise 1 --delta 1e-5 --steps 1": (
        "--elements M is missing"
    ),
    f"epsilon --algorithm centralgroup {Q} --noise 1 --delta 1e-5 --steps 1": "needs --silos",
    f"epsilon --algorithm centralgroup {Q} --silos 2 --view updates --noise 1 --delta 1e-5 --steps 1": (
        "contradicts"
    ),
    "epsilon --algorithm userldp --noise 1 --delta 1e-5 --epochs 2": "an epoch has no length",
    f"noise --algorithm itemdp {Q} --delta 1e-5 --steps 9 --epsilon 0": "epsilon must be finite",
    f"noise --algorithm itemdp {Q} --delta 0 --steps 9 --epsilon 1": r"delta must be in \(0, 1\)",
    f"rounds --algorithm itemdp {Q} --delta 1e-5 --epsilon -1 --noise 2": "epsilon must be finite",
    f"{PLAN} --epsilon 2": "exactly one of --epsilon .* and --noise",
    f"{PLAN} --steps 3": "exactly one of --steps and --epochs",
    f"{PLAN} --cap 2": "--cap has no meaning for higradavg",
    f"{PLAN} --clip-norm 0": "clip_norm=0.0 must be finite and above 0",
    f"{PLAN} --silo-column h": "leave out --silo-column|--silo-column needs",
    f"{PLAN} --save /nowhere/plan.json": "No such file or directory",
    PLAN.replace("--subjects 200 ", ""): "--subjects is missing",
    PLAN.replace("--noise 8", "--epsilon 2").replace("--delta 1e-5", ""): "--epsilon needs --delta",
    PLAN.replace(
        "--items-per-subject 9", "--items-per-subject 2"
    ): "--items-per-subject 2 is too small",
    "statement": "say --plan FILE, --model FILE, or the options",
    "statement --plan /nowhere.json": "/nowhere.json: No such file or directory",
    "statement --plan x.json --noise 3": "--plan and --noise contradict",
    "statement --ledger x.json": "--ledger needs --plan",
    COMPARE: "--items, --subjects, --items-per-subject are missing",
    f"{COMPARE} --items 900 --subjects 9 --items-per-subject 100 --steps 3": "contradict",
    f"{COMPARE} --items 900 --subjects 9 --items-per-subject 100 --cap 0": "--cap is 0",
    f"{COMPARE} --items 30 --subjects 9 --items-per-subject 10": "batch above the data",
    f"{COMPARE} --items 900 --subjects 9 --items-per-subject 100 --silos-per-subject 2": (
        "needs --silo-column"
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
def test_bad_input_is_status_two_and_one_clear_line(capsys, words):
    assert re.search(BAD[words], refused(capsys, words.split()))


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


@pytest.mark.parametrize("command", ["epsilon", "noise", "rounds", "plan", "statement", "compare"])
def test_help_says_units_adjacency_and_papers(capsys, command):
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for word in (
        "noise standard deviation / clip norm",
        "probability that one ITEM",
        "probability that one SUBJECT",
        "probability that one ELEMENT",
        "the most items of one subject",
        "adding or removing one unit",
        "arXiv:2206.03617",
        "--json",
        "Exit status",
    ):
        assert word in out


# The remedy at the end of the error: options that the line did not give.
REMEDIES = {
    "epsilon --algorithm itemdp": "missing: say --q, --p, --batch or --expected-subjects",
    "epsilon --algorithm itemdp --items 100": "say --q, --p, --batch or --expected-subjects",
    "epsilon --algorithm itemdp --ids TABLE --column id": "--batch or --expected-subjects",
    "epsilon --algorithm elementdp": "missing: say --p, --r, --q or --expected-subjects",
    "epsilon --algorithm batchclipping": "missing: say --q or --batch",
    "plan --algorithm itemdp --subjects 20": "missing: say --batch or --expected-subjects",
    "plan --algorithm elementdp --items 100": "missing: say --expected-subjects",
    "plan --algorithm batchclipping": "missing: say --batch",
    "epsilon --algorithm itemdp --sampling shuffle": "shuffle needs --batch",
    "epsilon --algorithm itemdp --p 0.1 --sampling fixed-size": "needs --batch, not --p",
    "epsilon --algorithm itemdp --q 0.1 --sampling fixed-size": "no rate of its own: say --batch",
    "epsilon --algorithm itemdp --q 0.1 --sampling poisson-subjects": (
        "needs --p or --expected-subjects, not --q"
    ),
    "epsilon --algorithm elementdp --sampling poisson-elements": "needs --r or --expected-elements",
    "epsilon --algorithm elementdp --r 0.1 --sampling poisson-items": "--q or --batch, not --r",
    "plan --algorithm itemdp --batch 5 --sampling poisson-subjects": (
        "needs --expected-subjects, not --batch"
    ),
    "epsilon --algorithm elementdp --r 0.1 --sampling shuffle": (
        "leave out --sampling, and sample subjects, elements or items"
    ),
    "plan --algorithm elementdp --expected-subjects 5 --sampling shuffle": (
        "leave out --sampling, and sample subjects"
    ),
    "plan --algorithm elementdp --batch 5": "saved as JSON",
    "epsilon --algorithm itemdp --r 0.1": "poisson-elements is for elementdp, not for itemdp",
    "epsilon --algorithm batchclipping --p 0.1": "say --q or --batch instead",
    "plan --algorithm batchclipping --expected-subjects 5": "say --batch instead",
    "epsilon --algorithm batchclipping --q 0.1 --sampling poisson-subjects": (
        "leave out --sampling poisson-subjects"
    ),
    "epsilon --algorithm centralgroup --p 0.1 --items 100": "samples items: say --q or --batch",
    "epsilon --algorithm centralgroup --p 0.1 --sampling poisson-subjects": (
        "leave out --sampling poisson-subjects"
    ),
    "epsilon --algorithm elementdp --r 0.1 --ids TABLE --column id": "leave it out",
    "epsilon --algorithm itemdp --p 0.1 --ids TABLE --column id": (
        "--p and --ids contradict each other: say --expected-subjects instead"
    ),
    "epsilon --algorithm itemdp --p 0.1 --subjects 9 --cap-data 2": (
        "leave out --subjects, or say --expected-subjects instead"
    ),
    "epsilon --algorithm itemdp --expected-subjects 5 --items-per-subject 2": (
        "--expected-subjects needs --subjects N, how many there are"
    ),
    "plan --algorithm itemdp --batch 5 --items 9 --ids TABLE --column id": (
        "--ids and --items contradict each other: give one"
    ),
    "epsilon --algorithm itemdp --q 0.1 --cap 2": "--cap-data bounds the items in the data",
    "epsilon --algorithm itemdp --q 0.1 --cap 2 --cap-data 5": "or where subjects are sampled",
    "epsilon --algorithm itemdp --q 0.1 --elements-in-all 9": "is for elementdp, not for itemdp",
    "epsilon --algorithm elementdp --p 0.1 --elements-in-all 9": "it counts what is sampled",
    "epsilon --algorithm userldp --p 0.1 --unit element": "--unit subject or item or silo",
    "plan --algorithm itemdp --q 0.1": "unrecognized arguments: --q 0.1 .*",
}


@pytest.mark.parametrize("line", REMEDIES)
def test_the_remedy_is_an_option_that_was_not_given(capsys, tmp_path, line):
    table = tmp_path / "t.csv"
    table.write_text("id,x\na,1\nb,2\n")
    words = f"{line} --noise 3 --steps 10 --delta 1e-5".replace("TABLE", str(table)).split()
    assert re.search(f"{REMEDIES[line]}$", refused(capsys, words))
