GRADIENT = 'lax.pmean(jax.grad(loss)(local, x), "data")'
OF_MEAN_LOSS = 'jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)'
STEP = 'lax.pmean(jax.value_and_grad(loss)(local, x, y), "data")'
STEP_OF_MEAN_LOSS = """jax.value_and_grad(
            lambda params: lax.pmean(loss(params, x, y), "data")
        )(params)"""
CAST_OF_STEP = 'local = lax.pcast(params, "data", to="varying")'
OWN = "jax.value_and_grad(loss)(local, x, y)"
TRAPPED = 'lax.pmean(jax.value_and_grad(loss)(params, x, y), "data")'
GRADIENTS_AVERAGED = f'{OWN}\n        gradients = lax.pmean(gradients, "data")'
RETURNED = "optax.apply_updates(params, updates), optimizer_state, value"
LOSS_ADDED = f"{GRADIENTS_AVERAGED}\n        value = lax.psum(value, 'data')"
MODELS_AVERAGED = f'lax.pmean(({RETURNED}), "data")'
UNCHECKED = ("**specs)", "**specs, check_vma=False)")
DIVIDED_BY_8 = f"{OWN.replace('local', 'params')}\n        gradients = jax.tree.map(lambda g: g / 8, gradients)\n        value = lax.pmean(value, 'data')"
DIVIDED_BY_EIGHT = "jax.tree.map(lambda g: g / 8, jax.grad(loss)(w, x))"
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
        ("take the mean of the loss", GRADIENT, OF_MEAN_LOSS.replace("pmean", "psum")),
        ("a psum did so again", GRADIENT, 'lax.psum(jax.grad(loss)(w, x), "data")'),
        ("different gradients", GRADIENT, "jax.grad(loss)(local, x)"),
        ("Either psum took the place", "pmean", "psum"),
        (
            "average the loss or the gradients, not both",
            GRADIENT,
            f"lax.pmean({OF_MEAN_LOSS.replace('(w)', '(local)')}, 'data')",
        ),
        (
            "average the loss or the gradients, not both",
            GRADIENT,
            f'jax.tree.map(lambda g: g / lax.axis_size("data"), {OF_MEAN_LOSS})',
        ),
        ("a tree like w", GRADIENT, 'lax.pmean(loss(w, x), "data")'),
        ("you divide by 8, but this check runs on 5", GRADIENT, DIVIDED_BY_EIGHT),
    ],
    "make_step": [
        ("this is the trap", STEP, TRAPPED),
        ("can't be statically inferred", STEP, OWN),
        ("different parameters", STEP, OWN, *UNCHECKED),
        ("average it too", STEP, GRADIENTS_AVERAGED, *UNCHECKED),
        ("take the mean of the loss, too", STEP, GRADIENTS_AVERAGED),
        ("5 times too large on 5 devices: use pmean", STEP, LOSS_ADDED),
        (
            "does not use jax.shard_map",
            COMPILED,
            "jax.jit(lambda p, s, x, y: (p, s, loss(p, x, y)))",
        ),
        ("return jax.jit", COMPILED, "loss"),
        ("before optimizer.update", STEP, OWN, RETURNED, MODELS_AVERAGED),
        ("Either psum took the place", "pmean", "psum"),
        ("this mesh has 5 devices", STEP, DIVIDED_BY_8),
        (
            "loss was called with 15 rows",
            'in_specs": (P(), P(), P("data"), P("data"))',
            'in_specs": P()',
        ),
        (
            "loss was called with 15 rows",
            CAST_OF_STEP,
            "",
            STEP,
            f"jax.value_and_grad(lambda params: {BY_JIT})(params)",
            COMPILED,
            "jax.jit(step, out_shardings=jax.NamedSharding(mesh, P()))",
        ),
    ],
}

DIVIDED = 'jax.tree.map(lambda g: g / lax.axis_size("data"), jax.grad(loss)(w, x))'

RIGHT = {
    "fixed_gradient": [
        (GRADIENT, OF_MEAN_LOSS),
        (GRADIENT, DIVIDED),
    ],
    "make_step": [
        (STEP, STEP_OF_MEAN_LOSS),
        (STEP, TRAPPED, *UNCHECKED),
        (CAST_OF_STEP, "", STEP, OF_GRADIENT, COMPILED, "jax.jit(step)"),
        (COMPILED, COMPILED.replace("specs))", "specs), donate_argnums=(0, 1))")),
    ],
}
