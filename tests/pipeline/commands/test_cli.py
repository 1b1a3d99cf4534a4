"""Exit code and whole output of the commands, good and bad."""

import bz2
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from elmo.data.tokenizer import installed_tokenization
from elmo.model.embedder import Embedder
from pipeline.commands.cli import cli
from tests.elmo.conftest import save_tiny_model
from tests.pipeline.command_line import COMMANDS, ROOT, elmo, every_command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "model"
    save_tiny_model(folder, tokenizer=installed_tokenization("unicode"))
    return folder


@pytest.mark.parametrize("name", ["t.txt.gz", "t.jsonl", "t.csv", "t.tsv.bz2", "t.parquet"])
def test_embed_takes_the_formats_of_a_corpus(model: Path, tmp_path: Path, name: str) -> None:
    texts = ["the cat sat", "", "on the mat"]
    if name == "t.parquet":
        pq.write_table(pa.table({"review": texts}), tmp_path / name)
    elif name == "t.jsonl":
        records = [json.dumps({"review": text}) for text in texts]
        (tmp_path / name).write_text("\n".join(records))
    else:
        header = "" if "txt" in name else "review,n\n" if "csv" in name else "n\treview\n"
        form = "{}\n" if "txt" in name else "{},1\n" if "csv" in name else "1\t{}\n"
        data = (header + "".join(map(form.format, texts))).encode()
        pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)
        (tmp_path / name).write_bytes(pack(data))
    out = tmp_path / "out.npz"
    words = ("embed", model, "--input", tmp_path / name, "--output", out)
    code, _, errors = elmo(*words, "--column", "review")
    assert (code, errors) == (0, "")
    vectors = np.load(out)
    assert [vectors[str(k)].shape[1] for k in range(len(vectors))] == [3, 0, 3]
    if "txt" not in name:
        code, _, errors = elmo(*words, "--overwrite")
        assert code == 1 and "'text'" in errors and "pass --column" in errors


def test_embed_pretokenized_layers_dtype_and_carry(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    source = tmp_path / "in.txt"
    source.write_text("a gift!\na gift!\n")
    options = ["--pretokenized", "--layers", "0,2", "--dtype", "float16", "--state", "carry"]
    code, _, _ = elmo(
        "embed", model, "--input", source, "--output", out, *options, "--batch-size", 1
    )
    assert code == 0
    vectors = np.load(out)
    wanted = Embedder.load(model).embed([["a", "gift!"]] * 2, 1, layers=[0, 2], state="carry")
    assert vectors["0"].dtype == np.float16
    np.testing.assert_allclose(vectors["1"], wanted[1], atol=2e-3)
    assert np.abs(vectors["1"][1] - vectors["0"][1]).max() > 1e-3


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (
            ["embed", "MODEL", "--input", "-", "--output", "o.npz", "--layers", "two"],
            b"a\n",
            "error: --layers must be all or numbers such as 0,2; found 'two'\n",
        ),
        (
            ["perplexity", "MODEL", "--input", "-"],
            b"\n\n",
            "error: <stdin>: no sentences; the text is empty or blank\n",
        ),
        (
            ["embed", "MODEL", "--input", "-", "--output", "o.npz"],
            b"",
            "error: <stdin>: no sentences; the text is empty or blank\n",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    model: Path, tmp_path: Path, arguments: list[str], stdin: bytes, message: str
) -> None:
    arguments = [str(model) if a == "MODEL" else a for a in arguments]
    code, out, error = elmo(*arguments, stdin=stdin, cwd=tmp_path)
    assert (code, out, error) == (1, "", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    """Also where what was printed is larger than the buffer, or there is none."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for own in ({}, {"PYTHONUNBUFFERED": "1"}):
        command = [sys.executable, "-m", "pipeline", "--help"]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                command, cwd=ROOT, env=buffered | own, stdout=full, stderr=subprocess.PIPE
            )
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("error: standard output: No space left on device; redirect it")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_is_one_line_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "pipeline", "corpus", str(tmp_path / "out"), "--work", "work"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup ignores SIGHUP
    )
    while not list(tmp_path.iterdir()) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == 1
    assert error == "error: interrupted; run the same command again\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_python_ends_has_no_traceback() -> None:
    code = "import atexit, os; atexit.register(os.kill, os.getpid(), 15)"
    code += "; from pipeline.commands.cli import run_cli; run_cli()"
    command = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "") and "version" in done.stdout


def test_the_help_says_of_each_command_a_whole_sentence() -> None:
    said = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    lists = " ".join(said.split("Stages, in order:")[1].split())
    for name, command in every_command(COMMANDS):
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert command.help and all(one.help for one in options), name
        if " " not in name:
            assert f"{name} {' '.join(command.get_short_help_str(1000).split())}" in lists
    assert "..." not in lists and max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("verify", "models/finetun"), "models/finetun: no such folder; did you mean 'MEANT'?"),
        (("verify", "models/zz"), "models/zz: no such folder; pass the folder of a store"),
        (
            ("perplexity", "models/finetun", "--input", "-"),
            "models/finetun: no such model folder; did you mean 'MEANT'?",
        ),
        (("preset", "smal"), "no preset smal; did you mean 'small'?"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_that_is_meant(
    words: tuple[str, ...], answer: str, tmp_path: Path
) -> None:
    (tmp_path / "models" / "finetune").mkdir(parents=True)
    (tmp_path / "models" / "pretrain").mkdir()
    (tmp_path / "params.yaml").touch()
    code, _, error = elmo(*words, cwd=tmp_path)
    assert code == 1 and error.count("\n") == 1
    assert error.endswith(f"{answer.replace('MEANT', 'models/finetune')}\n")
