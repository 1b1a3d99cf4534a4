"""What few labelled examples teach: ordinary features, a network on ELMo, and both together.

    python -m benchmarks.labels --train EWT.conllu --test EWT.conllu [--kind tagging]
        [--columns word=2,tag=3] [--counts 100,300,1000] [--draws 3] [--model english]

Each draw is of so many examples of --train; the last fifth of them is the dev file. Prints JSON:
for each number of examples, the mean score on --test over the draws (F1 of spans where tags mark
any, else accuracy). `features` and `vectors` are a linear model alone, `network` is the network
without them, `both` what `elmo task train` gives. `seconds` are those of the processor, for
training with all of them.
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.machine import show
from elmo.model.pretrained import pretrained_folder
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import distinct_sentences, learnable_examples
from elmo.tasks.features import Shares
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.kinds import task_settings
from elmo.tasks.metrics import main_score
from elmo.tasks.task import Task, train_task
from elmo.tasks.train import fit_linear
from elmo.tasks.vectors import build_sentence_store

ALONE = {"features": Shares(0.0, 1.0, 0.0), "vectors": Shares(0.0, 0.0, 1.0)}


def main() -> None:
    """Train on each draw of each size, and print the mean scores."""
    options = _options()
    columns = dict(pair.split("=") for pair in options.columns.split(",") if pair)
    train, test = (
        read_examples(options.kind, path, columns=columns) for path in (options.train, options.test)
    )
    model = pretrained_folder(options.model)
    scores: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as work:
        for count in map(int, options.counts.split(",")):
            for draw in range(options.draws):
                examples = random.Random(draw).sample(learnable_examples(train.examples), count)
                sample = replace(train, examples=examples)
                for name, score in score_ways(
                    options.kind, sample, test, model, Path(work)
                ).items():
                    scores.setdefault(str(count), {}).setdefault(name, []).append(score)
    means = {
        count: {name: round(fmean(values), 4) for name, values in ways.items()}
        for count, ways in scores.items()
    }
    show({"test": options.test.name, "model": options.model, "draws": options.draws} | means)


def score_ways(
    kind: str, sample: ExampleSet, test: ExampleSet, model: Path, work: Path
) -> dict[str, float]:
    """Return the score on `test` of each way to learn from the examples of `sample`."""
    cut = len(sample.examples) * 4 // 5
    train = replace(sample, examples=sample.examples[:cut])
    dev = replace(sample, examples=sample.examples[cut:])
    settings = task_settings(kind, {})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "task"
        begun = time.process_time()
        train_task(kind, train, dev, out=out, settings=settings, model=model, work=Path(folder))
        seconds = time.process_time() - begun
        of_test, of_train = (
            build_sentence_store(distinct_sentences(part), model=model, work=place, layers=None)
            for part, place in ((test.examples, work), (sample.examples, Path(folder)))
        )
        task = Task.load(out, vectors=of_test)
        scores = {"both": main_score(task.evaluate(test))}
        task.model.linear = None
        scores["network"] = main_score(task.evaluate(test))
        linear = fit_linear(task.model, train.examples, vectors=of_train, settings=settings)
        task.model.linear = linear
        for name, linear.shares in ALONE.items():
            scores[name] = main_score(task.evaluate(test))
    return scores | {"seconds": seconds}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", default="tagging", choices=["tagging", "classification", "pairs"])
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--columns", default="")
    parser.add_argument("--counts", default="100,300,1000")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--model", default="english")
    return parser.parse_args()


if __name__ == "__main__":
    main()
