"""The loss of a run over its moves: a chart of characters, an SVG, and whether the curve goes on."""

import csv
import html


class Point:
    def __init__(self, step, loss, held_out, world_size, membership):
        self.step = step
        self.loss = loss
        self.held_out = held_out  # None: not evaluated after this step
        self.world_size = world_size
        self.membership = membership  # (term, epoch)


def read_loss_log(path):
    """Points of the lineage, by step: of a step that was done again the last one counts. Lines are
    step,loss,held-out loss or nothing,tokens/s,world size,term,epoch."""
    by_step = {}
    with open(path, encoding="utf-8", newline="") as f:
        for row in csv.reader(f):
            try:
                step, loss, held_out, _, world_size, term, epoch = row
                point = Point(int(step), float(loss), float(held_out) if held_out else None,
                              int(world_size), (int(term), int(epoch)))
            except ValueError:
                continue  # a last line whose writer was killed
            by_step[point.step] = point
    return [by_step[step] for step in sorted(by_step)]


def segments(points):
    """The points cut where the membership changes."""
    cut = []
    for point in points:
        if not cut or cut[-1][-1].membership != point.membership:
            cut.append([])
        cut[-1].append(point)
    return cut


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def continuity(points, window=20):
    """For each move: (step, mean loss before, mean loss after, allowed difference). The difference
    that is allowed is that of chance: four times the spread of such a mean, from the points around
    the move themselves; a fresh start differs by many times that."""
    moves = []
    parts = segments(points)
    for before, after in zip(parts, parts[1:]):
        a = [p.loss for p in before[-window:]]
        b = [p.loss for p in after[:window]]
        spread = mean([abs(y - x) for part in (a, b) for x, y in zip(part, part[1:])] or [0.0])
        allowed = 4 * spread / min(len(a), len(b)) ** 0.5 + 0.05
        moves.append((after[0].step, mean(a), mean(b), allowed))
    return moves


def missing_steps(points):
    """Steps without a point between the first and the last."""
    have = {p.step for p in points}
    return [s for s in range(points[0].step, points[-1].step + 1) if s not in have]


def ascii_chart(points, width=72, height=12):
    """Lines of text; a '|' column where the run moved, and under it the number of workers."""
    low = min(p.loss for p in points)
    high = max(p.loss for p in points)
    first, last = points[0].step, points[-1].step
    span = max(1, last - first)

    def column(step):
        return (step - first) * (width - 1) // span

    def row(loss):
        return round((high - loss) / max(1e-9, high - low) * (height - 1))

    grid = [[" "] * width for _ in range(height)]
    sums = {}
    for p in points:
        total, count = sums.get(column(p.step), (0.0, 0))
        sums[column(p.step)] = (total + p.loss, count + 1)
    parts = segments(points)
    for part in parts[1:]:
        for line in grid:
            line[column(part[0].step)] = ":"
    for c, (total, count) in sums.items():
        grid[row(total / count)][c] = "*"
    lines = []
    for i, line in enumerate(grid):
        label = high - (high - low) * i / (height - 1)
        lines.append(f"{label:6.2f} |" + "".join(line).rstrip())
    lines.append("       +" + "-" * width)
    workers = [" "] * width
    for part in parts:
        text = f"{part[0].world_size}w"
        at = column(part[0].step)
        if at > 0:
            at += 1
        for i, c in enumerate(text):
            if at + i < width and workers[at + i] == " ":
                workers[at + i] = c
    lines.append("        " + "".join(workers).rstrip() + f"   steps {first}-{last}")
    return lines


def svg_chart(points, title, width=860, height=360):
    left, right, top, bottom = 60, 20, 40, 50
    low = min(p.loss for p in points)
    high = max(p.loss for p in points)
    first, last = points[0].step, points[-1].step

    def x(step):
        return left + (step - first) / max(1, last - first) * (width - left - right)

    def y(loss):
        return top + (high - loss) / max(1e-9, high - low) * (height - top - bottom)

    colours = {1: "#d55e00", 2: "#0072b2", 3: "#009e73"}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="22" font-size="15">{html.escape(title)}</text>']
    for i in range(5):
        value = high - (high - low) * i / 4
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" '
                   f'y2="{y(value):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}'
                   '</text>')
    for i, part in enumerate(segments(points)):
        at = x(part[0].step)
        if i > 0:
            out.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{height - bottom}" '
                       'stroke="#888" stroke-dasharray="4 3"/>')
        word = "worker" if part[0].world_size == 1 else "workers"
        out.append(f'<text x="{at + 4:.1f}" y="{top + 12 + 14 * (i % 2)}">'
                   f'{part[0].world_size} {word}</text>')
        path = " ".join(f"{x(p.step):.1f},{y(p.loss):.1f}" for p in part)
        out.append(f'<polyline points="{path}" fill="none" stroke-width="1.5" '
                   f'stroke="{colours.get(part[0].world_size, "#444")}"/>')
    out.append(f'<text x="{width / 2:.0f}" y="{height - 12}" text-anchor="middle">step '
               f'({first} to {last}); a dashed line is a move</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
