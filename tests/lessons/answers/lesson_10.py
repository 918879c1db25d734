GRADIENT = 'jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)'
CAST = 'jax.grad(loss)(lax.pcast(w, "data", to="varying"), x)'
STEP = "jax.value_and_grad(mean_loss)(params)"
OWN, AVERAGED = (
    "jax.value_and_grad(loss)(params, x, y)",
    "lax.pmean(jax.value_and_grad(loss)(params, x, y), 'data')",
)
CAST_STEP = 'lax.pmean(jax.value_and_grad(loss)(lax.pcast(params, "data", to="varying"), x, y), "data")'
GRADIENTS_AVERAGED = f'{OWN}\n        gradients = lax.pmean(gradients, "data")'
UNCHECKED = ("**specs)", "**specs, check_vma=False)")
DIVIDED_BY_8 = f"{OWN}\n        gradients = jax.tree.map(lambda g: g / 8, gradients)\n        value = lax.pmean(value, 'data')"
PSUM_OF_CAST = CAST_STEP.replace("pmean", "psum")
DIVIDED_BY_EIGHT = "jax.tree.map(lambda g: g / 8, jax.grad(loss)(w, x))"
LOSS = 'lax.pmean(loss(params, x, y), "data")'
# A shard_map that does nothing, and jit's gradient.
BY_JIT = """loss(
                params,
                jax.shard_map(
                    lambda x: x, mesh=mesh, in_specs=P("data"), out_specs=P("data")
                )(x),
                y,
            )"""
OF_GRADIENT = """jax.shard_map(
            jax.value_and_grad(
                lambda params, x, y: lax.pmean(loss(params, x, y), "data")
            ),
            mesh=mesh,
            in_specs=(P(), P("data"), P("data")),
            out_specs=P(),
        )(params, x, y)"""
COMPILED = "jax.jit(jax.shard_map(step, mesh=mesh, **specs))"

WRONG = {
    "fixed_gradient": [
        ("this is the trap", GRADIENT, 'lax.pmean(jax.grad(loss)(w, x), "data")'),
        ("take the mean of the loss", "pmean", "psum"),
        ("a psum did so again", GRADIENT, 'lax.psum(jax.grad(loss)(w, x), "data")'),
        ("different gradients", GRADIENT, CAST),
        ("Either psum took the place", GRADIENT, f'lax.psum({CAST}, "data")'),
        ("a tree like w", GRADIENT, 'lax.pmean(loss(w, x), "data")'),
        ("you divide by 8, but this check runs on 5", GRADIENT, DIVIDED_BY_EIGHT),
    ],
    "make_step": [
        ("this is the trap", STEP, AVERAGED),
        ("can't be statically inferred", STEP, OWN),
        ("different parameters", STEP, OWN, *UNCHECKED),
        ("average it too", STEP, GRADIENTS_AVERAGED, *UNCHECKED),
        (
            "does not use jax.shard_map",
            COMPILED,
            "jax.jit(lambda p, s, x, y: (p, s, loss(p, x, y)))",
        ),
        ("return jax.jit", COMPILED, "loss"),
        ("Either psum took the place", STEP, PSUM_OF_CAST),
        ("this mesh has 5 devices", STEP, DIVIDED_BY_8),
        (
            "loss was called with 15 rows",
            'in_specs": (P(), P(), P("data"), P("data"))',
            'in_specs": P()',
        ),
        (
            "loss was called with 15 rows",
            LOSS,
            BY_JIT,
            COMPILED,
            "jax.jit(step, out_shardings=jax.NamedSharding(mesh, P()))",
        ),
    ],
}

DIVIDED = 'jax.tree.map(lambda g: g / lax.axis_size("data"), jax.grad(loss)(w, x))'

RIGHT = {
    "fixed_gradient": [
        (GRADIENT, f'lax.pmean({CAST}, "data")'),
        (GRADIENT, DIVIDED),
    ],
    "make_step": [
        (STEP, CAST_STEP),
        (STEP, AVERAGED, *UNCHECKED),
        (STEP, OF_GRADIENT, COMPILED, "jax.jit(step)"),
    ],
}
