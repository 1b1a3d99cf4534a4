"""One file that serves without this package gives the same vectors, whatever the lengths."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.errors import ElmoError
from elmo.interop.portable_model import ExportableBiLM, export_portable_model
from elmo.model.embedder import Embedder
from elmo.model.folder import Model, load_model
from elmo.model.mix import Elmo
from tests.elmo.conftest import batch_to_ids
from tests.golden.models import import_golden

SERVING = Path(__file__).resolve().parents[3] / "docs" / "guides" / "serving.md"
TEXTS = [
    [["gift"]],
    [["he", "has", "a", "gift"], ["한국어", "for", "the", "x" * 60, "😀", "he"], ["<S>"]],
    [["the"] * 70, ["a"], ["gift"] * 3, ["for", "has"]],
]
ALONE = """
import json, sys
import numpy as np
batches = [np.array(ids) for ids in json.load(sys.stdin)]
if sys.argv[1].endswith(".pt2"):
    import torch
    module = torch.export.load(sys.argv[1]).module()
    found = [module(torch.from_numpy(ids)) for ids in batches]
else:
    import onnxruntime
    session = onnxruntime.InferenceSession(sys.argv[1])
    found = [session.run(["layers"], {"ids": ids})[0] for ids in batches]
assert not [name for name in sys.modules if name.split(".")[0] == "elmo"]
print(json.dumps([layers.tolist() for layers in found]))
"""


@pytest.fixture(scope="module", params=[".pt2", ".onnx"])
def exported(
    request: pytest.FixtureRequest,
    tiny_model_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The tiny model as one file, in a folder of its own."""
    out = tmp_path_factory.mktemp("exported") / f"model{request.param}"
    export_portable_model(str(tiny_model_folder), str(out))
    return out


@pytest.mark.parametrize(
    "name", ["plain", "no_highway_tanh", "no_projection", "no_skip", "no_clip"]
)
@pytest.mark.slow
def test_it_is_the_same_model_in_other_operations(name: str, tmp_path: Path) -> None:
    model = load_model(import_golden(name, tmp_path))
    expected = Embedder(model).embed(TEXTS[1])
    found = ExportableBiLM(model)(batch_to_ids(TEXTS[1]))
    for row, vectors in enumerate(expected):
        n = vectors.shape[1]
        np.testing.assert_allclose(found[row, :, :n], vectors, atol=1e-5)
        assert found[row, :, n:].abs().sum() == 0


@pytest.mark.slow
def test_the_file_serves_without_the_package(
    exported: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    assert list(exported.parent.iterdir()) == [exported]
    embedder = Embedder.load(tiny_model_folder)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE, str(exported)],
        cwd=tmp_path,
        text=True,
        input=json.dumps([batch_to_ids(sentences).tolist() for sentences in TEXTS]),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    for sentences, answer in zip(TEXTS, answers, strict=True):
        found = np.array(answer, np.float32)
        for row, vectors in enumerate(embedder.embed(sentences)):
            n = vectors.shape[1]
            np.testing.assert_allclose(found[row, :, :n], vectors, atol=1e-5)
            assert np.abs(found[row, :, n:]).sum() == 0


@pytest.mark.slow
def test_the_guide_reads_onnx_as_shown(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_model_folder, "models/finetune")
    export_portable_model("models/finetune", "model.onnx")
    blocks = re.findall(r"```python\n(.*?)```", SERVING.read_text(encoding="utf-8"), re.DOTALL)
    (shown,) = (block for block in blocks if "onnxruntime" in block)
    names: dict[str, Any] = {}
    exec(shown, names)
    (vectors,) = Embedder.load("models/finetune").embed([["He", "has", "a", "gift"]])
    np.testing.assert_allclose(names["layers"][0], vectors, atol=1e-5)


@pytest.mark.slow
def test_the_file_says_which_model_tokenizer_and_characters(
    exported: Path, tiny_model_folder: Path
) -> None:
    if exported.suffix == ".pt2":
        extra = {"elmo.json": ""}
        torch.export.load(exported, extra_files=extra)
        notes = json.loads(extra["elmo.json"])
    else:
        onnxruntime = pytest.importorskip("onnxruntime")
        properties = onnxruntime.InferenceSession(exported).get_modelmeta().custom_metadata_map
        notes = {name.removeprefix("elmo."): text for name, text in properties.items()}
    assert notes["digest"] == load_model(tiny_model_folder).digest
    assert json.loads(notes["tokenizer"]) == {"name": "whitespace"}
    assert json.loads(notes["characters"]) == {
        "kind": "bytes",
        "max_characters": 50,
        "symbols": None,
        "first_mark": 256,
    }
    assert (notes["layers"], notes["dim"]) == ("3", "8")


def test_a_mix_of_its_layers_is_the_module(tiny_model: Model) -> None:
    layers = ExportableBiLM(tiny_model)(batch_to_ids(TEXTS[1]))
    (mixed,), _ = Elmo(tiny_model, dropout=0.0)(batch_to_ids(TEXTS[1])).values()
    torch.testing.assert_close(layers.mean(1), mixed.detach(), atol=1e-5, rtol=0)


def test_what_cannot_be_served_is_refused(tiny_model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"m\.bin: must end in \.pt2 \(torch\.export\) or \.onnx"):
        export_portable_model(tiny_model_folder, tmp_path / "m.bin")
    with pytest.raises(ElmoError, match="reads words, not characters"):
        export_portable_model(import_golden("words", tmp_path), tmp_path / "m.pt2")
    assert not (tmp_path / "m.pt2").exists()
