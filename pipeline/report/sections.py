"""The report's sections on figures: model, perplexity and tasks."""

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from elmo.tasks.metrics import score_order

from .page import Block, Heading, Paragraph, Picture, Table, code_html
from .phrases import (
    ARMS,
    SIMPLE,
    UNKNOWN,
    interval_text,
    unknown_words_remark,
    versus_unigram,
)
from .results import TEXTS, JsonObject, Results


def summary(results: Results) -> str:
    """Return the sentences at the head of the page: the held-out perplexities, and their worth."""
    final = results.scores["after"]
    figures = final["domain" if "domain" in final else "general"]
    unigram = figures["unigram"]  # None if the vocabulary has no counts
    comparison = "" if unigram is None else f"; by word counts alone it would be {unigram:.0f}"
    return (
        f"{_headline(results)} The model is as unsure of a word as between "
        f"{figures['average']:.0f} equally likely ones{comparison}"
        f"{unknown_words_remark(figures['unk_rate'])}."
    )


def _headline(results: Results) -> str:
    pretrain, finetune = results.figures["pretrain"], results.figures["finetune"]
    if results.started_from and results.tuned:
        return (
            f"Held-out perplexity {finetune['domain_perplexity_before']:.1f} on domain text before "
            f"fine-tuning {results.started_from}, {finetune['domain_perplexity_after']:.1f} after."
        )
    general = ""
    if "times_below_unigram" in pretrain:
        general = (
            f"Held-out perplexity {pretrain['heldout_perplexity']:.1f} on general text, "
            f"{versus_unigram(pretrain['times_below_unigram'])} the unigram model's. "
        )
    if not results.tuned:
        return f"{general}The domain text is the general text, so nothing was fine-tuned."
    return (
        f"{general}Fine-tuning took domain text from {finetune['domain_perplexity_before']:.1f} to "
        f"{finetune['domain_perplexity_after']:.1f}."
    )


def model(results: Results) -> Table:
    """Return a table that names the model: its version, network, training and digests."""
    origin = ("Started from", f"{results.started_from}, trained elsewhere")
    if not results.started_from:
        origin = ("Pretrained on", _trained_on(results.figures["pretrain"], "general"))
    rows = [
        ("Registered as", _version(results.registered)),
        ("Network", _network(results.network)),
        origin,
        ("Fine-tuned on", _tuned_on(results.figures["finetune"])),
        ("MLflow run of the model", code_html(results.training.get("run_id", ""))),
        ("Digest of the model", code_html(results.registered["model_digest"])),
        ("Digest of the store", code_html(results.store.digest)),
    ]
    return Table(rows)


def _version(registration: JsonObject) -> str:
    if not registration["version"]:
        return "nothing: it is an experiment"
    return Markup("{}, version {}").format(code_html(registration["uri"]), registration["version"])


def _trained_on(figures: JsonObject, text: str) -> str:
    return (
        f"{text} text in {figures['steps']:,} steps: {figures['tokens_seen']:,} tokens and ends of "
        "sentences, those of each reading counted"
    )


def _network(network: JsonObject) -> str:
    filters = sum(count for _, count in network["filters"])
    return (
        f"{filters} character filters, {network['highways']} highway, {network['layers']} layers "
        f"of {network['cells']} cells each way, projected to {network['projection']}: vectors of "
        f"{2 * network['projection']} numbers"
    )


def _tuned_on(figures: JsonObject) -> str:
    if "steps" not in figures:
        return "nothing: the domain text is what the model has read"
    return _trained_on(figures, "domain")


def perplexities(results: Results) -> list[Block]:
    """Return a table of the held-out perplexities, and a paragraph that explains it.

    Of a model that was trained elsewhere the domain text comes first.
    """
    figures, scores, started_from = results.figures, results.scores, results.started_from
    if "before" not in scores:
        return [_perplexity_of_one(scores["after"]["general"])]
    rows = []
    for text, title in reversed(TEXTS.items()) if started_from else TEXTS.items():
        initial, final = scores["before"][text], scores["after"][text]
        change = final["average"] / initial["average"] - 1
        rows.append(
            (
                title.capitalize(),
                _unigram(final),
                f"{initial['average']:.1f}",
                f"{final['average']:.1f}",
                f"{change:+.1%}".replace("-", "−"),
                _times_below_unigram(final),
                f"{final['bits_per_byte']:.3f}",
                f"{final['tokens']:,}",
                f"{final['unk_rate']:.1%}",
            )
        )
    head = (
        "Held-out",
        "unigram",
        "pretrained",
        "fine-tuned",
        "change",
        "below unigram",
        "bits per byte",
        "tokens",
        "unknown",
    )
    pretrain, words_added = figures["pretrain"], figures["finetune"]["words_added"]
    note = ""
    if "times_below_unigram" in pretrain:
        note = (
            f"With its own vocabulary {started_from or 'the pretrained model'} has "
            f"{pretrain['heldout_perplexity']:.1f} on general text (forward "
            f"{pretrain['heldout_forward']:.1f}, backward {pretrain['heldout_backward']:.1f}; "
            f"unigram model {pretrain['unigram_perplexity']:.1f}). "
        )
    note += (
        "The table compares both models under the fine-tuned one's vocabulary, "
        f"which has {words_added:,} words more; before training these share the probability "
        "of <UNK>."
    )
    blocks: list[Block] = [Table(rows, head=head), Paragraph(note)]
    rate = max(scores["after"][text]["unk_rate"] for text in TEXTS)
    if rate >= UNKNOWN:
        blocks.append(
            Paragraph(
                f"Up to {rate:.0%} of the tokens are unknown words, which all count as one and are "
                "easily guessed: this flatters a perplexity. Bits per byte tell more."
            )
        )
    return blocks


def _perplexity_of_one(figures: JsonObject) -> Table:
    """The table of a project of one text, whose model was pretrained alone."""
    row = (
        TEXTS["general"].capitalize(),
        _unigram(figures),
        f"{figures['average']:.1f}",
        _times_below_unigram(figures),
        f"{figures['bits_per_byte']:.3f}",
        f"{figures['tokens']:,}",
        f"{figures['unk_rate']:.1%}",
    )
    head = ("Held-out", "unigram", "pretrained", "below unigram", "bits per byte", "tokens")
    return Table([row], head=(*head, "unknown"))


def _unigram(figures: JsonObject) -> str:
    unigram = figures["unigram"]
    return "unknown" if unigram is None else f"{unigram:.1f}"


def _times_below_unigram(figures: JsonObject) -> str:
    unigram = figures["unigram"]
    return "unknown" if unigram is None else f"{unigram / figures['average']:.2f} ×"


def training() -> Paragraph:
    """Return a paragraph that explains the curves of training."""
    return Paragraph(
        "Held-out perplexity is the mean of both directions under the full softmax. Training "
        "perplexity is that of the loss: with dropout, and under the softmax of the settings."
    )


def tasks(by_task: Mapping[str, JsonObject], pictures: Path) -> list[Block]:
    """Return what each task scored on its test file with ELMo and without, with its picture.

    `by_task` has the figures of tasks by their names, the folder `pictures` a file NAME.png for
    each.
    """
    titles = ARMS | SIMPLE

    blocks: list[Block] = []
    for name, figures in by_task.items():
        arms = {arm: figures[arm] for arm in titles if arm in figures}
        names = [key for key in next(iter(arms.values())) if not key.endswith("_sd")]
        scores = sorted(names, key=score_order)
        rows = [(titles[arm], *(_score(row, key) for key in scores)) for arm, row in arms.items()]
        blocks += [Heading(name), Table(rows, head=("", *scores))]
        examples = figures["examples"]
        blocks.append(
            Paragraph(
                f"{_seeds(figures)}; {examples['test']:,} test examples, "
                f"{examples['train']:,} to learn from.{_gain(figures)}"
            )
        )
        blocks.append(Picture(name, (pictures / f"{name}.png").read_bytes()))
    return blocks


def _seeds(figures: JsonObject) -> str:
    seeds = figures["seeds"]
    return "One seed" if seeds == 1 else f"Mean of {seeds} seeds ± the standard deviation"


def _gain(figures: JsonObject) -> str:
    """Return what ELMo gains, with both intervals; nothing where one arm was trained alone."""
    if "gain" not in figures:
        return ""
    seeds = ""
    if figures["gain_low"] is not None:
        interval = interval_text(figures["gain_low"], figures["gain_high"])
        seeds = f"over seeds is {interval} (Student's t), "
    units = interval_text(figures["gain_test_low"], figures["gain_test_high"])
    return (
        f" With ELMo {figures['gain']:+.3f}: the 95 % interval {seeds}over the test examples "
        f"{'' if seeds else 'is '}{units} (paired bootstrap)."
    )


def _score(figures: JsonObject, name: str) -> str:
    deviation = f" ± {figures[name + '_sd']:.3f}" if name + "_sd" in figures else ""
    return f"{figures[name]:.3f}{deviation}"
