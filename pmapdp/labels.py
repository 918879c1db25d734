"""The names of the classes of each data set, in the order of their numbers."""

DIGITS = tuple("0123456789")
SENTIMENTS = ("negative", "positive")
LABELS = {
    "digits": DIGITS,
    "mnist": DIGITS,
    "fashion-mnist": (
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    "imdb": SENTIMENTS,
    "reviews": SENTIMENTS,
}
