"""Tables as LaTeX; they need the package booktabs and nothing else."""

import re
import unicodedata

from orthogp.apps.paper.tables.model import ResultTable, Row
from orthogp.apps.paper.tables.text import MISSING, lines, two_lines

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    # After a line break a bracket would be its argument.
    "[": "{[}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "–": "--", "—": "---", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "≥": r"$\ge$",
    "≤": r"$\le$", "β": r"$\beta$", "γ": r"$\gamma$", "“": "``", "”": "''", "’": "'",
}  # fmt: skip
# More columns or lines than these need a smaller type to stay on a page.
WIDE, TALL = 8, 55


def to_latex(table: ResultTable) -> str:
    """A `table` environment, our best figure of each row bold, the notes under it."""
    columns = len(table.columns)
    body = "\\addlinespace[2pt]\n".join(_row(row) for row in table.rows)
    small = columns > WIDE or body.count("\n") > TALL
    heads = " & ".join([escape(table.heading), *map(_heading, table.columns)])
    parts = [
        r"\begin{table}[htbp]",
        r"\setlength{\belowcaptionskip}{4pt}",
        rf"\caption{{{escape(table.title)}}}",
        r"\tiny" if small else r"\scriptsize",
        r"\setlength{\tabcolsep}{2pt}",
        # Into both margins where the columns are many.
        r"\makebox[\textwidth][c]{%",
        rf"\begin{{tabular}}{{l{'r' * columns}}}",
        r"\toprule",
        heads + r" \\",
        r"\midrule",
        body + r"\bottomrule",
        r"\end{tabular}}",
    ]
    if table.notes:
        notes = "\\\\\n".join(escape(note) for note in table.notes)
        parts += [r"\begin{flushleft}", notes, r"\end{flushleft}"]
    return "\n".join([*parts, r"\end{table}", ""])


def escape(text: str) -> str:
    """Text that LaTeX sets as it is; a sign that it may not know becomes the nearest of ASCII."""
    return "".join(SPECIAL.get(sign) or _ascii(sign) for sign in " ".join(text.split()))


def _ascii(sign: str) -> str:
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return plain if sign.isspace() or plain else "?"


def _heading(method: str) -> str:
    stacked = r"\\".join(escape(part) for part in two_lines(method).split("\n"))
    return rf"\begin{{tabular}}[b]{{@{{}}r@{{}}}}{stacked}\end{{tabular}}"


def _row(row: Row) -> str:
    best, out = row.best(), ""
    for number, (name, texts) in enumerate(lines(row)):
        cells = [_figure(text, bold=number == 0 and i in best) for i, text in enumerate(texts)]
        label = escape(name) if number == 0 else rf"\quad {escape(name)}"
        out += " & ".join([label, *cells]) + " \\\\\n"
    return out


def _figure(text: str, bold: bool) -> str:
    if text in ("", MISSING):
        return escape(text)
    digits = re.sub("^[+-]", lambda sign: f"${sign[0]}$", text)
    return rf"\textbf{{{digits}}}" if bold else digits
