"""The example that trains a tagger from a store needs the library alone."""

import os
import random
import sys
from pathlib import Path

import pytest

from tests.elmo.conftest import make_store
from tests.programs import ROOT, call

EXAMPLE = ROOT / "examples" / "tagger.py"


@pytest.mark.slow
def test_the_example_learns_tags_of_words_from_a_store(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    words = ["the", "gift", "late", "music", "for", "he"]
    sentences = [draw.choices(words, k=draw.randrange(9)) for _ in range(400)]
    make_store(tmp_path, sentences, tiny_model_folder, heldout_every=5, shard_sentences=60)
    tags = [" ".join(word.upper() for word in sentence) for sentence in sentences]
    (tmp_path / "tags.txt").write_text("\n".join(tags) + "\n")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("ray", "mlflow", "dvc", "click", "pipeline"):
        (blocked / f"{name}.py").write_text("raise ImportError('not part of the library')\n")
    own = {"PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}", "PATH": "", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, EXAMPLE, tiny_model_folder, "store", "tags.txt"]
    accuracy, *layers, last = call(*words, cwd=tmp_path, env=own).splitlines()
    assert float(accuracy.removeprefix("held-out accuracy ")) > 0.6  # one of six by chance
    assert [line.split()[0] for line in layers] == ["layer_0", "layer_1", "layer_2"]
    assert "'tags': [" in last
