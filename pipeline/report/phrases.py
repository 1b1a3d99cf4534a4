"""Phrases about figures, for the terminal and the pages."""

import json
from collections.abc import Mapping
from typing import Any

NOTABLE_UNKNOWN_SHARE = 0.05  # unknown tokens above this share get a remark
ARMS = {"elmo": "with ELMo", "baseline": "without ELMo"}
SIMPLE_BASELINES = {
    "majority": "by the most frequent label",
    "features": "by hand-crafted features",
    "static": "by layer 0",
}


def unigram_phrase(times_below: float) -> str:
    """Compare a perplexity with the unigram model's, as text such as `2.5× lower than`.

    `times_below` is the unigram model's perplexity divided by the model's.
    """
    if times_below >= 1:
        return f"{times_below:.1f}× lower than"
    return f"{1 / times_below:.1f}× higher than"


def unknown_words_remark(rate: float | None) -> str:
    """Return a remark if unknown tokens make a perplexity look too good, else "".

    `rate` is the share of unknown tokens, which count as one word.
    """
    if rate is None or rate < NOTABLE_UNKNOWN_SHARE:
        return ""
    return f" (too optimistic: {rate:.0%} of the tokens are unknown words)"


def interval_text(low: float | None, high: float | None) -> str:
    """Return an interval as text, such as `+0.024 to +0.181`, or `unknown` if there is none."""
    return "unknown" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


def describe_rule(finding: Mapping[str, Any]) -> str:
    """Describe the setting that drops the text of a finding, and whether it is on."""
    if not finding["setting"]:
        return "always" if finding["is_on"] else "never, only counted"
    rule = f"tokenize.{finding['setting']}: {json.dumps(finding['value'])}"
    return rule if finding["is_on"] else f"{rule} (off)"
