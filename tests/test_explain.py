"""Every code can be explained, and what the explanation shows is true."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from topo_text import table

import topoc.lowering
from topoc.dsl.cli import main
from topoc.dsl.lint.diagnose import diagnose
from topoc.dsl.lint.kinds import KINDS
from topoc.dsl.lint.lessons import LESSONS, NOT_LOWERED, STAGES, summary
from topoc.dsl.lint.rule import Evidence, Trust
from topoc.dsl.lint.rules import CODES, every, rule
from topoc.dsl.lint.sources import aged
from topoc.dsl.lint.symptoms import SYMPTOMS
from topoc.dsl.load import Loader
from topoc.dsl.resolve import Given

GOLDEN = Path(__file__).parent / "golden" / "explain"
FRAME = {
    "model": 'model "gemma3.json"',
    "target": "target ane ios18 a17",
    "context": "context 2048",
    "chunk": "chunk body = L0-17 + norm + head(argmax)",
}
LOWERING = Path(topoc.lowering.__file__).parent
ENDINGS = {"json", "mlmodel", "model", "safetensors"}  # of files
COMPILER = {"model.contradicts-checkpoint"}  # takes weights to raise
UNSHOWN = {"chunk.too-many-ops"}  # its example has thousands of lines
each = pytest.mark.parametrize("code", sorted(KINDS))


def layers(path):
    if path.name == "nowhere.json":
        raise FileNotFoundError(2, "No such file or directory", str(path))
    if path.name == "broken.json":
        raise IsADirectoryError(21, "Is a directory", str(path))
    return table(path)


def whole(lines):
    """Lines as a file: as they are, or in a topology that says what they leave out."""
    if lines.startswith(("topology", "experiment")):
        return lines + "\n"
    heads = {line.split()[0] for line in lines.splitlines() if line.strip()}
    rest = [line for head, line in FRAME.items() if head not in heads]
    return "topology example {\n" + "\n".join([*rest, lines]) + "\n}\n"


def found(lines, folder):
    """The codes of all that is found in the lines, and in the topology that a command takes."""
    path = folder / "example.topo"
    path.write_text(whole(lines), "utf-8")
    loader = Loader(Given({}, None, layers))
    every = [*loader.all(str(path)), loader.one(str(path), None)]
    return {finding.code for loaded in every for finding in loaded.findings}


def topoc_(*arguments):
    return CliRunner().invoke(main, arguments)


def test_every_kind_has_a_lesson_and_no_lesson_is_a_rule():
    assert set(LESSONS) == set(KINDS)
    assert not set(LESSONS) & set(CODES)


@each
def test_the_wrong_lines_of_a_lesson_raise_its_kind(code, tmp_path):
    if code not in COMPILER:
        assert code in found(LESSONS[code].wrong, tmp_path)


@each
def test_the_right_lines_of_a_lesson_do_not(code, tmp_path):
    if code not in COMPILER:
        assert code not in found(LESSONS[code].right, tmp_path)


@each
def test_a_lesson_is_one_sentence(code):
    says = LESSONS[code].says
    assert re.fullmatch(r"[A-Z`][^\n]*\.", says)
    assert not re.search(r"\. [A-Z]", says)
    assert len(says) <= 100
    assert "invalid" not in says


@pytest.mark.parametrize("code", sorted({*KINDS, *CODES}))
def test_everything_can_be_explained(code):
    result = topoc_("explain", code)
    assert result.exit_code == 0
    assert result.stdout.startswith(code)
    if code in UNSHOWN:
        return
    assert "\nwrong" in result.stdout
    assert "\nright" in result.stdout


def test_a_rule_is_explained_with_its_evidence():
    for kind in every():
        shown = topoc_("explain", kind.code).stdout
        assert kind.severity.value in shown.splitlines()[0]
        for one in kind.evidence:
            assert f"{one.trust.value} {one.date}: {one.what}\n" in shown
            assert f"    {one.source}\n" in shown
            assert one.figure in shown
        assert kind.remedy in shown
        assert all(text in shown for text in kind.error_texts)


@pytest.mark.parametrize("code", ["state.update", "kv.donor-forgets", "chunk.gap", "allow.unused"])
def test_reads_as_expected(code, golden):
    golden(GOLDEN / f"{code}.expect", topoc_("explain", code).stdout)


def test_an_unknown_code_gets_its_neighbours():
    result = topoc_("explain", "state.updates")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "no finding has the code `state.updates`" in result.stderr
    assert "did you mean `state.update`" in result.stderr
    assert "`chunk.gap`" in topoc_("explain", "chunk.xyzzyxyzzy").stderr
    assert "`topoc rules` lists them all" in topoc_("explain", "xyzzy").stderr


@pytest.mark.parametrize("code", CODES)
def test_each_message_of_a_rule_leads_back_to_it(code):
    for text in rule(code).error_texts:
        assert code in [getattr(one.behind, "code", "") for one in diagnose(text)], text


# What people paste: parts of messages, whole lines of logs, with slips.
PASTED = {
    "error code: -14": "state.update",
    'Error Domain=com.apple.CoreML Code=0 "Failed to build the model execution plan using a model '
    "architecture file '/private/var/a.mlmodelc/model.mil' with error code: -14.\"": "state.update",
    "ANECCompile() FAILED": "quant.activations",
    "ANEProgramProcessRequestDirect() Failed with status=0x1d : statusType=0x9: Program Inference "
    "error": "state.more-than-two",
    "status=0x1d": "state.more-than-two",
    "libc++abi: terminating due to uncaught exception of type std::bad_cast": "state.exported-view",
    "ANE model load has failed for on-device compiled macho. Must re-compile the E5 bundle. @ "
    "ANEProgram": "chunk.too-many-layers",
    "MILCompilerForANE": "chunk.too-many-ops",
    "failed to compile ane modle using anef": "quant.activations",
    "BlobWritr not loadd": "BlobWriter not loaded",
    "Programm Inferense eror": "state.unlike-pair",
}


@pytest.mark.parametrize("text", PASTED)
def test_what_people_paste_finds_its_rule(text):
    assert PASTED[text] in topoc_("explain", text).stdout
    assert PASTED[text] in topoc_("explain", *text.split()).stdout


@pytest.mark.parametrize("text", ["error", "the weather is fine", "-", "0", "ÅÄÖ", "()" * 400])
def test_what_says_nothing_finds_nothing(text):
    result = topoc_("explain", "--", text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name.unknown" in result.stderr


def test_a_symptom_names_rules_that_there_are():
    for one in SYMPTOMS:
        assert set(one.rules) <= set(CODES)
        assert re.fullmatch(r"[A-Z].*\.", one.means)
        assert re.fullmatch(r"[A-Z].*\.", one.remedy)
        for text in one.texts:
            assert any(match.behind is one for match in diagnose(text)), text


@pytest.mark.parametrize("text", ["error code: -14", "Must re-compile the E5 bundle"])
def test_a_message_is_explained_as_expected(text, golden):
    name = re.sub(r"\W+", "_", text).lower()
    golden(GOLDEN / f"message_{name}.expect", topoc_("explain", text).stdout)


def test_evidence_that_is_older_than_the_toolchain_says_so():
    old = Evidence("x", "y", "2025-01", Trust.MEASURED, toolchain="coremltools 8.3, iOS 18")
    assert aged(old, "9.0") == "older than coremltools 9.0, which is in use"
    assert aged(old, "8.3.1") == aged(old, "8.0") == aged(old, None) == ""


def test_what_is_parsed_and_not_built_can_be_explained_too():
    assert "does not build yet" in topoc_("explain", "scheme.not-lowered").stdout


def test_every_code_of_the_compiler_can_be_explained():
    """A new code there wants a sentence in dsl/lint/lessons/stages.py."""
    families = {code.partition(".")[0] for code in STAGES}
    quoted = re.compile(rf'"((?:{"|".join(families)})\.[a-z0-9-]+)"')
    codes = {
        code
        for path in [*LOWERING.rglob("*.py"), LOWERING.parent / "dsl" / "cli" / "__init__.py"]
        for code in quoted.findall(path.read_text("utf-8"))
        if code.rpartition(".")[2] not in ENDINGS
    }
    assert len(codes) > 50
    known = {*STAGES, *KINDS, *CODES}
    assert {code for code in codes if not code.endswith(NOT_LOWERED)} <= known
    assert set(STAGES) <= codes  # and none is explained that is never found
    for code in codes:
        assert topoc_("explain", code).exit_code == 0


def test_a_sentence_on_a_later_stage_is_short_and_no_kind():
    assert not set(STAGES) & (set(KINDS) | set(CODES))
    for says in STAGES.values():
        assert re.fullmatch(r"[A-Z][^\n]{10,90}\.", says), says


def test_the_list_has_every_code_with_its_sentence(golden):
    listed = topoc_("rules").stdout
    for code in (*KINDS, *STAGES, *CODES):
        (line,) = [one for one in listed.splitlines() if one.split()[:1] == [code]]
        assert line.endswith(summary(code))
    golden(GOLDEN / "rules.expect", listed)
