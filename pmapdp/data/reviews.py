"""Short made-up film reviews, for trying out models of text without IMDB.

A grammar gives each review one to four sentences, most of which speak for its class. A
quarter of the verdicts are negated ("not at all dull" is praise), so a model that only
counts words gets some wrong.
"""

from random import Random

import numpy as np

from pmapdp.data.dataset import DataSet, Texts

SENTIMENTS = ("negative", "positive")
TRAIN_EXAMPLES = 4000
TEST_EXAMPLES = 1000
NEGATED = 0.25  # share of the verdicts that say the opposite of an adjective
# Share of the reviews with three verdicts in which one speaks against the other two.
OPPOSED = 0.4

THINGS = (
    "acting", "plot", "story", "script", "music", "dialogue", "ending", "beginning",
    "camera work", "cast", "pacing", "humour", "lead actor", "lead actress",
    "direction", "soundtrack", "editing", "scenery", "first half", "last scene",
)  # fmt: skip
NEGATIVE = (
    "terrible", "boring", "awful", "dull", "weak", "predictable", "clumsy", "tedious",
    "lifeless", "silly",
)  # fmt: skip
POSITIVE = (
    "wonderful", "gripping", "superb", "lively", "strong", "surprising", "elegant",
    "moving", "fresh", "witty",
)  # fmt: skip
ADJECTIVES = (NEGATIVE, POSITIVE)  # by the number of the class
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
    """Make 4,000 reviews to train and 1,000 to test, no two of them equal.

    Half of them are negative (0), half positive (1).
    """
    random = Random(0)
    reviews: dict[str, int] = {}
    while len(reviews) < TRAIN_EXAMPLES + TEST_EXAMPLES:
        label = len(reviews) % 2
        # A review that is there already keeps its label, and isn't counted again.
        reviews.setdefault(make_review(random, label), label)
    texts = list(reviews)
    labels = np.array(list(reviews.values()), np.int32)
    n = TRAIN_EXAMPLES
    train = Texts(texts[:n], labels[:n])
    test = Texts(texts[n:], labels[n:])
    return DataSet(train, test, SENTIMENTS)


def make_review(random: Random, label: int) -> str:
    """Make a review of class `label`.

    It has one verdict or three, most of that class, and perhaps a fact.
    """
    verdicts = random.choice((1, 3, 3))
    opposed = verdicts == 3 and random.random() < OPPOSED
    sentences = [make_verdict(random, label) for _ in range(verdicts - opposed)]
    if opposed:
        sentences.append(make_verdict(random, 1 - label))
    if random.random() < 0.5:
        fact = random.choice(FACTS).format(
            day=random.choice(DAYS),
            minutes=random.randrange(80, 180),
            place=random.choice(PLACES),
            friend=random.choice(FRIENDS),
        )
        sentences.append(fact)
    random.shuffle(sentences)
    return " ".join(
        sentence[0].upper() + sentence[1:] + random.choice(".!.")
        for sentence in sentences
    )


def make_verdict(random: Random, label: int) -> str:
    """Make a sentence that speaks for class `label`."""
    negated = random.random() < NEGATED
    if negated:
        form = random.choice(NEGATIONS)
        label = 1 - label  # "not dull" is praise
    else:
        form = random.choice(VERDICTS)
    adjective = random.choice(ADJECTIVES[label])
    thing = random.choice(THINGS)
    degree = random.choice(DEGREES)
    return form.format(thing=thing, adjective=adjective, degree=degree)
