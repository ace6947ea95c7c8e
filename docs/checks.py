"Write docs/checks.md, the page of the codes of checks, from `calibnb.evaluate.checks`; `make sync` calls this."
from pathlib import Path

from calibnb.evaluate.checks import CHECKS

HEAD = """# Checks

`calibnb audit` ends with the outcomes of these checks; `evaluate(...).checks` has them in Python, `--json` and the
report, too. An outcome is an `issue` (it changes what the numbers mean, or what should be done), a `tip` (worth
knowing, often harmless), `passed` or `not applicable`. `--ignore CODE` leaves a check out, and `--fail-on CODE` makes
the command fail ([how to](how-to/audit.md#stop-a-pipeline-if-a-model-is-not-calibrated)). The keys of `--json` are in
[audit-1.schema.json](audit-1.schema.json), the code in
[`40_evaluate/06a_checks`](../nbs/40_evaluate/06a_checks.ipynb).

| code | check |
|---|---|
"""


def section(check):
    "Return the section of a check; its anchor is the code in lower case."
    title = check.title[0].upper() + check.title[1:]
    paragraphs = (f"## {check.code}", f"**{title}.** {check.meaning}", f"*How it is decided.* {check.decided}",
                  f"*What to do.* {check.advice}")
    return "\n\n".join(paragraphs)


def page():
    "Return the page as Markdown: a table, then a section for each code."
    checks = [CHECKS[code] for code in sorted(CHECKS)]
    table = "\n".join(f"| [{c.code}](#{c.code.lower()}) | {c.title} |" for c in checks)
    return "\n\n".join([HEAD + table, *map(section, checks)]) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent/"checks.md").write_text(page(), encoding="utf-8")
