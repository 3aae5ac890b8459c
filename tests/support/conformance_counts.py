"""Counts of the conformance runs, gathered from all workers and printed at the end."""

from __future__ import annotations

from collections import Counter

import pytest

KEYS = ("cases", "refused", "left_out")


@pytest.fixture
def record(record_property):
    """Returns a function that keeps a report's counts for the summary, and requires its
    success.
    """

    def keep(kind, report):
        record_property(
            "conformance", [kind, report.op, *(getattr(report, k) for k in KEYS)]
        )
        report.require()

    return keep


def pytest_terminal_summary(terminalreporter):
    """Prints, for each op, how many cases ran, were refused, and were left out."""
    counts: dict[tuple[str, str], Counter] = {}
    for outcome in ("passed", "failed"):
        for test in terminalreporter.stats.get(outcome, ()):
            for name, value in test.user_properties:
                if name == "conformance":
                    kind, op, *numbers = value
                    counts.setdefault((kind, op), Counter()).update(
                        dict(zip(KEYS, numbers, strict=True))
                    )
    for kind in dict.fromkeys(kind for kind, _ in counts):
        rows = sorted((op, c) for (k, op), c in counts.items() if k == kind)
        total = sum((c for _, c in rows), Counter())
        terminalreporter.section(
            f"conformance, {kind}: {len(rows)} ops, {_words(total)}"
        )
        for op, count in rows:
            terminalreporter.line(f"{op:<24} {_words(count)}")


def _words(count):
    refused = (
        f"{count['refused']} illegal layouts refused, " if count["refused"] else ""
    )
    return f"{count['cases']} cases, {refused}{count['left_out']} layouts left out"
