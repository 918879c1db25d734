"""Short made-up film reviews, for trying out models of text without IMDB.

A grammar gives each review one to four sentences, most of which speak for its class. A
quarter of the verdicts are negated ("not at all dull" is praise), so a model that only
counts words gets some wrong.
"""

from random import Random

import numpy as np

from pmapdp.data.dataset import DataSet, Texts

SENTIMENTS = ("negative", "positive")
TRAIN_EXAMPLES, TEST_EXAMPLES = 4000, 1000
NEGATED = 0.25  # share of the verdicts that say the opposite of an adjective
OPPOSED = 0.4  # share of the reviews with three verdicts in which one speaks against the other two

THINGS = (
    "acting", "plot", "story", "script", "music", "dialogue", "ending", "beginning", "camera work", "cast", "pacing",
    "humour", "lead actor", "lead actress", "direction", "soundtrack", "editing", "scenery", "first half", "last scene",
)  # fmt: skip
ADJECTIVES = (
    ("terrible", "boring", "awful", "dull", "weak", "predictable", "clumsy", "tedious", "lifeless", "silly"),
    ("wonderful", "gripping", "superb", "lively", "strong", "surprising", "elegant", "moving", "fresh", "witty"),
)  # fmt: skip
DEGREES = ("", "", "really ", "quite ", "simply ", "rather ", "truly ")
VERDICTS = (
    "the {thing} was {degree}{adjective}",
    "i found the {thing} {degree}{adjective}",
    "{degree}{adjective} {thing}",
)
NEGATIONS = (
    "the {thing} was not {adjective}",
    "the {thing} was never {adjective}",
    "i did not find the {thing} {adjective}",
    "nobody can call the {thing} {adjective}",
    "the {thing} was anything but {adjective}",
    "the {thing} was not at all {adjective}",
)
FACTS = (
    "we saw it on a {day}",
    "it runs for {minutes} minutes",
    "the film is set in {place}",
    "my {friend} had chosen it",
    "it was made after a novel from {place}",
    "the cinema was half empty on that {day}",
)
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PLACES = (
    "paris",
    "a small town",
    "the desert",
    "tokyo",
    "the mountains",
    "lagos",
    "a submarine",
    "the suburbs",
)
FRIENDS = ("brother", "sister", "neighbour", "colleague", "mother", "father", "friend")


def load() -> DataSet:
    """Make 4,000 reviews to train and 1,000 to test, half of them negative (0), half positive (1), no two equal."""
    random = Random(0)
    reviews: dict[str, int] = {}
    while len(reviews) < TRAIN_EXAMPLES + TEST_EXAMPLES:
        label = len(reviews) % 2
        reviews.setdefault(make_review(random, label), label)
    texts, labels = list(reviews), np.array(list(reviews.values()), np.int32)
    n = TRAIN_EXAMPLES
    return DataSet(
        Texts(texts[:n], labels[:n]), Texts(texts[n:], labels[n:]), SENTIMENTS
    )


def make_review(random: Random, label: int) -> str:
    """Make a review of class `label`: one verdict or three, most of that class, and perhaps a fact."""
    verdicts = random.choice((1, 3, 3))
    opposed = verdicts == 3 and random.random() < OPPOSED
    sentences = [make_verdict(random, label) for _ in range(verdicts - opposed)]
    if opposed:
        sentences.append(make_verdict(random, 1 - label))
    if random.random() < 0.5:
        form, day, minutes = (
            random.choice(FACTS),
            random.choice(DAYS),
            random.randrange(80, 180),
        )
        place, friend = random.choice(PLACES), random.choice(FRIENDS)
        sentences.append(
            form.format(day=day, minutes=minutes, place=place, friend=friend)
        )
    random.shuffle(sentences)
    return " ".join(
        sentence[0].upper() + sentence[1:] + random.choice(".!.")
        for sentence in sentences
    )


def make_verdict(random: Random, label: int) -> str:
    """Make a sentence that speaks for class `label`."""
    negated = random.random() < NEGATED
    form = random.choice(NEGATIONS if negated else VERDICTS)
    adjective = random.choice(ADJECTIVES[1 - label if negated else label])
    return form.format(
        thing=random.choice(THINGS), adjective=adjective, degree=random.choice(DEGREES)
    )
