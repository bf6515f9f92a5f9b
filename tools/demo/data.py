"""Pictures of shapes and their captions: what the demo model is trained on and measured with.

A picture is described by a `Scene` (background, one or two shapes); `caption` puts a scene into words and `draw`
renders many scenes at once, on any device, from signed distances (so edges are anti-aliased).
"""

import random
from dataclasses import dataclass, replace

import torch

SIZE = 128

COLOURS = {
    "red": (220, 35, 35),
    "green": (35, 160, 60),
    "blue": (35, 75, 225),
    "yellow": (250, 220, 40),
    "orange": (250, 135, 20),
    "purple": (135, 45, 170),
    "pink": (255, 150, 195),
    "cyan": (60, 210, 225),
    "brown": (120, 70, 35),
    "gray": (135, 135, 135),
    "black": (12, 12, 12),
    "white": (250, 250, 250),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "diamond")
PLACES = {
    "": (0.5, 0.5),
    "in the center": (0.5, 0.5),
    "at the top": (0.5, 0.25),
    "at the bottom": (0.5, 0.75),
    "on the left": (0.25, 0.5),
    "on the right": (0.75, 0.5),
    "in the top left corner": (0.25, 0.25),
    "in the top right corner": (0.75, 0.25),
    "in the bottom left corner": (0.25, 0.75),
    "in the bottom right corner": (0.75, 0.75),
}
RELATIONS = ("above", "below", "left of", "right of", "inside")
OPPOSITE = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}
RADII = {
    "alone": {"small": (0.10, 0.14), "": (0.20, 0.26), "large": (0.33, 0.39)},
    "placed": {"small": (0.08, 0.11), "": (0.15, 0.19), "large": (0.20, 0.23)},
    "inside": {"": (0.12, 0.15)},
    "around": {"": (0.34, 0.40)},
}


@dataclass(frozen=True)
class Figure:
    """One shape: what a caption says of it, and where it was put."""

    shape: str
    colour: str
    size: str = ""
    x: float = 0.5
    y: float = 0.5
    radius: float = 0.2


@dataclass(frozen=True)
class Scene:
    """A background and one or two figures; the first stands in `relation` to the second."""

    background: str
    figures: tuple
    relation: str = ""
    place: str = ""


def random_scene(rng):
    """A scene with its positions drawn at random within what its words allow."""
    background = "white" if rng.random() < 0.5 else rng.choice(list(COLOURS))
    colours = [name for name in COLOURS if name != background]
    if rng.random() < 0.3:
        place = "" if rng.random() < 0.4 else rng.choice(list(PLACES))
        figure = Figure(rng.choice(SHAPES), rng.choice(colours), random_size(rng, 0.5))
        return put_alone(Scene(background, (figure,), "", place), rng)
    first, second = rng.sample(colours, 2) if rng.random() < 0.95 else [rng.choice(colours)] * 2
    relation = "inside" if rng.random() < 0.1 and first != second else rng.choice(RELATIONS[:4])
    sized = 0.0 if relation == "inside" else 0.25
    figures = tuple(Figure(rng.choice(SHAPES), c, random_size(rng, sized)) for c in (first, second))
    if relation == "inside":
        figures = (figures[0], replace(figures[1], shape=rng.choice(("circle", "square", "diamond"))))
    return put_related(Scene(background, figures, relation), rng)


def random_size(rng, chance):
    return rng.choice(("small", "large")) if rng.random() < chance else ""


def put_alone(scene, rng):
    figure = scene.figures[0]
    room = "alone" if scene.place in ("", "in the center") else "placed"
    jitter = 0.04
    x, y = (c + rng.uniform(-jitter, jitter) for c in PLACES[scene.place])
    return replace(scene, figures=(replace(figure, x=x, y=y, radius=rng.uniform(*RADII[room][figure.size])),))


def put_related(scene, rng):
    first, second = scene.figures
    if scene.relation == "inside":
        x, y = (0.5 + rng.uniform(-0.06, 0.06) for _ in range(2))
        first = replace(first, x=x, y=y, radius=rng.uniform(*RADII["inside"][""]))
        second = replace(second, x=x, y=y, radius=rng.uniform(*RADII["around"][""]))
        return replace(scene, figures=(first, second))
    near = 0.5 - rng.uniform(0.21, 0.25)
    far = 0.5 + rng.uniform(0.21, 0.25)
    if scene.relation in ("below", "right of"):
        near, far = far, near
    side = [0.5 + rng.uniform(-0.1, 0.1) + rng.uniform(-0.04, 0.04) for _ in range(2)]
    upright = scene.relation in ("above", "below")
    placed = []
    for figure, along, across in zip((first, second), (near, far), side):
        x, y = (across, along) if upright else (along, across)
        placed.append(replace(figure, x=x, y=y, radius=rng.uniform(*RADII["placed"][figure.size])))
    return replace(scene, figures=tuple(placed))


def caption(scene, rng):
    """The scene in words, in one of several ways of saying it."""
    article = rng.choices(("a", "", "the"), (0.8, 0.14, 0.06))[0]
    names = [figure_words(figure, article, rng) for figure in scene.figures]
    if len(names) == 1:
        text = " ".join(filter(None, (names[0], spelled(scene.place, rng))))
    else:
        text = related_words(scene.relation, names, rng)
    text += background_words(scene, article, rng)
    if rng.random() < 0.1:
        text = rng.choice(("a picture of ", "a drawing of ", "an image of ", "a painting of ", "draw ")) + text
    if rng.random() < 0.12:
        text = text[0].upper() + text[1:]
    return text + ("." if rng.random() < 0.08 else "")


def figure_words(figure, article, rng):
    size = figure.size
    if size:
        size = rng.choice(("small", "little", "tiny") if size == "small" else ("large", "big"))
    words = " ".join(filter(None, (size, spelled(figure.colour, rng), figure.shape)))
    if article == "a" and words[0] in "aeiou":
        return "an " + words
    return f"{article} {words}".strip()


def spelled(words, rng):
    """British spelling now and then."""
    return words.replace("gray", "grey").replace("center", "centre") if rng.random() < 0.25 else words


def related_words(relation, names, rng):
    first, second = names
    if relation == "inside":
        return f"{first} {rng.choice(('inside', 'inside', 'in', 'inside of'))} {second}"
    if rng.random() < 0.2:
        first, second, relation = second, first, OPPOSITE[relation]
    form = rng.random()
    if form < 0.08:
        return f"{second} with {first} {relation_words(relation, rng)} it"
    if form < 0.16:
        return f"{relation_words(relation, rng)} {second}, {first}"
    join = "is " if form < 0.22 else ", " if form < 0.28 else ""
    gap = "" if join == ", " else " "
    return f"{first}{gap}{join}{relation_words(relation, rng)} {second}"


def relation_words(relation, rng):
    choices = {
        "above": ("above", "above", "above", "over"),
        "below": ("below", "below", "below", "under", "beneath"),
        "left of": ("left of", "to the left of", "to the left of"),
        "right of": ("right of", "to the right of", "to the right of"),
    }
    return rng.choice(choices[relation])


def background_words(scene, article, rng):
    """The background as a phrase; white needs none."""
    if scene.background == "white" and rng.random() < 0.7:
        return ""
    colour = spelled(scene.background, rng)
    one = "" if article == "" else ("an " if colour[0] in "aeiou" else "a ")
    forms = (f" on {one}{colour} background",) * 4 + (
        f", {colour} background",
        f" with {one}{colour} background",
        f" against {one}{colour} background",
        f" on {colour}",
    )
    return rng.choice(forms)


def distances(x, y, radius):
    """Signed distance of (x, y) to each shape of that radius, in the order of SHAPES; inside is negative."""
    length = torch.sqrt(x * x + y * y + 1e-12)
    across, up = x.abs(), y.abs()
    triangle = torch.maximum(y, 0.8660254 * across - 0.5 * y) - 0.575 * radius
    bar = 0.3 * radius
    cross = torch.minimum(
        torch.maximum(across - radius, up - bar),
        torch.maximum(across - bar, up - radius),
    )
    return (
        length - radius,
        torch.maximum(across, up) - 0.87 * radius,
        triangle,
        star_distance(x, y, 1.15 * radius),
        cross,
        (length - 0.78 * radius).abs() - 0.22 * radius,
        (across + up - 1.15 * radius) * 0.7071068,
    )


def star_distance(x, y, radius):
    """A five-pointed star, one point up: the plane is folded onto half a point, where its edge is one line."""
    fifth = 2 * torch.pi / 5
    angle = torch.atan2(x, -y)
    folded = (angle - fifth * torch.round(angle / fifth)).abs()
    length = torch.sqrt(x * x + y * y + 1e-12)
    along, across = length * torch.cos(folded), length * torch.sin(folded)
    half = torch.tensor(torch.pi / 5)
    inner_along, inner_across = 0.45 * torch.cos(half) * radius, 0.45 * torch.sin(half) * radius
    edge_along, edge_across = inner_along - radius, inner_across
    edge = torch.sqrt(edge_along * edge_along + edge_across * edge_across)
    return (edge_across * (along - radius) - edge_along * across) / edge


def scene_numbers(scene):
    """One scene as the numbers `draw` takes: background colour, then shape, position, radius and colour of two figures."""
    names = list(COLOURS)
    row = [float(names.index(scene.background))]
    # The second figure is drawn first: a figure inside another must end on top.
    for figure in reversed(scene.figures):
        row += [SHAPES.index(figure.shape), figure.x, figure.y, figure.radius, names.index(figure.colour)]
    if len(scene.figures) == 1:
        row += [0.0, -9.0, -9.0, 0.1, 0.0]
    return row


def draw(numbers, outline=False, jitter=None, size=SIZE):
    """Renders rows of `scene_numbers` to [n, 3, size, size] in 0..1; `jitter` is a [n, 3, 3] offset of the three colours."""
    device = numbers.device
    palette = torch.tensor(list(COLOURS.values()), device=device, dtype=torch.float32) / 255
    axis = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) / size
    colours = torch.stack([palette[numbers[:, column].long()] for column in (0, 5, 10)], dim=1)
    if jitter is not None:
        colours = (colours + jitter).clamp(0, 1)
    image = colours[:, 0, :, None, None].expand(-1, -1, size, size)
    for index in range(2):
        shape, x, y, radius = (numbers[:, 1 + 5 * index + k, None, None] for k in range(4))
        every = torch.stack(distances(axis[None, None, :] - x, axis[None, :, None] - y, radius), dim=1)
        chosen = every.gather(1, shape.long()[:, None].expand(-1, 1, size, size)).squeeze(1)
        if outline:
            stroke = 0.035
            chosen = (chosen + stroke / 2).abs() - stroke / 2
        cover = (0.5 - chosen * size).clamp(0, 1)[:, None]
        image = image * (1 - cover) + colours[:, 1 + index, :, None, None] * cover
    return image


def scenes_and_captions(count, seed):
    """`count` random scenes with a caption each."""
    rng = random.Random(seed)
    scenes = [random_scene(rng) for _ in range(count)]
    return scenes, [caption(scene, rng) for scene in scenes]
