EXAMPLES = "np.stack([text[length * i : length * (i + 1) + 1] for i in range(n)])"
VIEW = "np.lib.stride_tricks.sliding_window_view(text, length + 1)"
COUNT = "(len(text) - 1) // length"
LIKE_THE_PROGRAM = """text[: len(text) // (length + 1) * (length + 1)].reshape(
        -1, length + 1
    )"""

SPLIT = "x.ndim > 0 and x.shape[0] % devices == 0"
SIZE = "x.size * x.dtype.itemsize"
SHAPES = "jax.eval_shape(init_state)"

CHANGED = "[name for name in names if saved.get(name, ...) != current.get(name, ...)]"
CURRENT = "json.loads(json.dumps(settings))"
FIRST = "if not file.exists():"
NAMES = "sorted(saved.keys() | current.keys())"
RAISE = 'raise ValueError(f"{file} has other values of {changed}: choose a new folder")'
PRINT = 'print(f"{file} has other values of {changed}: choose a new folder")'

WRONG = {
    "cut_examples": [
        ("token 9 is a target 0 times", EXAMPLES, LIKE_THE_PROGRAM),
        ("the shape is [n, 9]", "(i + 1) + 1]", "(i + 1)]"),
        ("token 2 is a target 2 times", EXAMPLES, VIEW),
        ("token 25 is a target 0 times", COUNT, "(len(text) - 1) // length - 1"),
        ("your code raised ValueError", COUNT, "len(text) // length"),
        ("in the order of the text", EXAMPLES, f"{EXAMPLES}[::-1]"),
        (
            "followed by the next one",
            EXAMPLES,
            f"{EXAMPLES} * (np.arange(length + 1) > 0)",
        ),
        ("token 28 is a target 2 times", EXAMPLES, f"{VIEW}[[0, 8, 16, 24, 27]]"),
    ],
    "bytes_per_device": [
        ("with 8 devices each holds", SPLIT, "True"),
        ("with 8 devices each holds", SPLIT, "False"),
        ("with 8 devices each holds", SIZE, "4 * x.size"),
        ("with 8 devices each holds", SIZE, "x.size"),
        ("with 8 devices each holds", SPLIT, "x.size % devices == 0"),
        (
            "with 8 devices each holds",
            SPLIT,
            "x.ndim > 0 and x.shape[-1] % devices == 0",
        ),
        ("find the shapes with jax.eval_shape", SHAPES, "init_state()"),
        ("find the shapes with jax.eval_shape", SHAPES, "jax.jit(init_state)()"),
        ("your code raised IndexError", SPLIT, "x.shape[0] % devices == 0"),
        ("with 3 devices each holds", "devices ==", "8 =="),
    ],
    "fixed_check_settings": [
        ("wasn't refused", FIRST, "if True:"),
        ("wasn't refused", RAISE, PRINT),
        ("wasn't refused", NAMES, "sorted(settings.keys() & saved.keys())"),
        ("wasn't refused", NAMES, "sorted(saved)"),
        ("wasn't refused", NAMES, "sorted(settings)"),
        ("name what differs", "{changed}", "{names}"),
        ("name what differs", "{changed}", "{changed[0]}"),
        (
            "with the first settings, after a refusal",
            "if changed:",
            "file.write_text(json.dumps(settings))\n    if changed:",
        ),
        ("yours returned True", "return settings", "return True"),
        ("of which JSON makes a list", CURRENT, "settings"),
        ("wasn't refused", "(name, ...)", "(name)"),
        ("wasn't refused", "saved.get(name, ...)", "saved.get(name)"),
        ("wasn't refused", "current.get(name, ...)", "current.get(name)"),
    ],
}

RIGHT = {
    "cut_examples": [
        (EXAMPLES, f"{VIEW}[::length]"),
        (EXAMPLES, "text[np.arange(n)[:, None] * length + np.arange(length + 1)]"),
        (
            EXAMPLES,
            "np.c_[text[: n * length].reshape(n, length), text[length::length][:n]]",
        ),
    ],
    "bytes_per_device": [
        (SHAPES, "jax.jit(init_state).lower().out_info"),
        ("x.size *", "int(np.prod(x.shape)) *"),
        (SIZE, "jax.numpy.dtype(x.dtype).itemsize * x.size"),
    ],
    "fixed_check_settings": [
        (FIRST, "if not (file.is_file() and file.stat().st_size):"),
        (
            CHANGED,
            "[n for n in names if n not in saved or n not in current or saved[n] != current[n]]",
        ),
        ("return settings", "return saved"),
        (
            CURRENT,
            "{k: list(v) if type(v) is tuple else v for k, v in settings.items()}",
        ),
    ],
}
