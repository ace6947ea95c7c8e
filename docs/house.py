"""Draw the picture of the wings in CONTRIBUTING from the imports: `python docs/house.py` writes docs/house.svg.

A dot means that the wing of its row imports from the wing of its column. All dots lie below the diagonal.
"""
import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
CELL, LEFT, TOP = 26, 118, 104  # pixels


def wings(root=ROOT):
    "Return the names of the wings in the sorted listing of nbs/."
    found = [p.stem.split("_", 1) for p in sorted((root/"nbs").iterdir()) if p.stem[:2].isdigit()]
    return [name for _, name in found]


def files_of(wing, root=ROOT):
    room = root/"calibnb"/f"{wing}.py"
    return [room] if room.exists() else sorted((root/"calibnb"/wing).glob("*.py"))


def arrows(root=ROOT):
    "Return the set of pairs (importing wing, imported wing)."
    names = wings(root)
    found = set()
    for wing in names:
        for path in files_of(wing, root):
            depth = len(path.relative_to(root/"calibnb").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                others = set(imported(node, depth)) & set(names) - {wing}
                found |= {(wing, other) for other in others}
    return found


def imported(node, depth):
    "Return the wings that an import statement names; `depth` leading dots denote the package."
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level == depth:
        return [module.split(".")[0]] if module else [name.name for name in node.names]
    if node.level == 0 and module.split(".")[0] == "calibnb":
        return module.split(".")[1:2] or [name.name for name in node.names]
    return []


def picture(names, pairs):
    "Return the matrix of imports as SVG."
    width, height = LEFT + CELL*len(names) + 12, TOP + CELL*len(names) + 12
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            'font-size="13">',
            '<title>Which wing imports from which</title>',
            f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, name in enumerate(names):
        x, y = LEFT + CELL*i, TOP + CELL*i
        middle = CELL//2
        text.append(f'<rect x="{LEFT}" y="{y}" width="{CELL*i}" height="{CELL - 1}" fill="#f1f4f6"/>')
        text.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="#44617b"/>')
        text.append(f'<text x="{LEFT - 8}" y="{y + middle + 4}" text-anchor="end">{name}</text>')
        text.append(f'<text transform="translate({x + middle + 4},{TOP - 8}) rotate(-60)">{name}</text>')
    for wing, other in sorted(pairs):
        x, y = LEFT + CELL*names.index(other) + CELL//2, TOP + CELL*names.index(wing) + CELL//2
        text.append(f'<circle cx="{x}" cy="{y}" r="6" fill="#c8553d"/>')
    return "\n".join([*text, "</svg>"]) + "\n"


if __name__ == "__main__":
    (ROOT/"docs"/"house.svg").write_text(picture(wings(), arrows()), encoding="utf-8")
