"""The mistakes that can be made in each program of tests/programs: the texts to replace, by program and mistake."""

MISTAKES: dict[str, dict[str, dict[str, str]]] = {
    "linen_dynamic_scale": {
        "no all-reduce": {'has_aux=True, axis_name="batch")': "has_aux=True)"},
        "sum in place of mean": {"    accuracy =": "    grads = lax.psum(grads, 'batch')\n    accuracy ="},
        "metrics of one device": {
            'lax.pmean({"loss": loss, "accuracy": accuracy}, axis_name="batch")': '{"loss": loss, "accuracy": accuracy}'
        },
        "loss is a sum": {"losses.mean() +": "losses.sum() +"},
    },
    "haiku_mixed_precision": {
        "no all-reduce": {'lax.pmean(grads, axis_name="i")': "grads"},
        "sum in place of mean": {'lax.pmean(grads, axis_name="i")': 'lax.psum(grads, axis_name="i")'},
        "clipped before the all-reduce": {
            'lax.pmean(grads, axis_name="i"))': "grads)\n    grads = clip(grads)\n    grads = lax.pmean(grads, 'i')",
            "def loss_fn": "def clip(grads):\n"
            "    return jax.tree_util.tree_map(lambda g: g * jnp.minimum(1, 0.1 / optax.tree.norm(grads)), grads)\n\n\n"
            "def loss_fn",
        },
        "not unscaled": {"loss_scale.unscale(": "("},
    },
    "hugging_face_tokens": {
        "no all-reduce": {'grad = jax.lax.psum(grad, "batch")': "pass"},
        "mean of means": {
            'num_labels = jax.lax.psum(num_labels, "batch")': 'own, num_labels = num_labels, jax.lax.psum(1, "batch")',
            'loss = jax.lax.psum(loss, "batch")': 'loss = jax.lax.psum(loss / own, "batch")',
            'grad = jax.lax.psum(grad, "batch")': 'grad = jax.lax.psum(jax.tree.map(lambda g: g / own, grad), "batch")',
        },
        "count of one device": {'num_labels = jax.lax.psum(num_labels, "batch")': "pass"},
        "key stands still": {"dropout_rng=new_dropout_rng": "dropout_rng=state.dropout_rng"},
        "one mask on all devices": {
            "dropout_rng, new_dropout_rng = jax.random.split(state.dropout_rng)": (
                "new_dropout_rng = jax.random.split(state.dropout_rng)[1]\n"
                "    dropout_rng = jax.lax.all_gather(state.dropout_rng, 'batch')[0]"
            )
        },
    },
    "score_scan": {
        "no all-reduce": {'grad = jax.lax.pmean(grad, axis_name="batch")': "pass"},
        "sum in place of mean": {'jax.lax.pmean(grad, axis_name="batch")': 'jax.lax.psum(grad, axis_name="batch")'},
        "average of weights is old": {"state.ema_params, params)": "state.ema_params, state.params)"},
        "key stands still": {"rng, step_rng = jax.random.split(rng)": "step_rng = jax.random.split(rng)[1]"},
        "loss of one device": {'loss = jax.lax.pmean(loss, axis_name="batch")': "pass"},
    },
    "ppo_environments": {
        "no all-reduce": {"grads = lax.pmean(grads, axis_name=_PMAP_AXIS_NAME)": "pass"},
        "statistics of one device": {"sums = lax.psum(sums, axis_name=_PMAP_AXIS_NAME)": "pass"},
        "one key on all devices": {
            "key, key_generate = jax.random.split(key)": (
                "key_generate = jax.random.split(lax.all_gather(key, 'i')[0])[1]\n    key = jax.random.split(key)[0]"
            )
        },
        "steps of one device": {"lax.psum(observed.shape[0], axis_name=_PMAP_AXIS_NAME)": "observed.shape[0]"},
        "metrics of one device": {
            'lax.pmean({"loss": losses.mean(), "reward": data["reward"].mean()}, axis_name=_PMAP_AXIS_NAME)': (
                '{"loss": losses.mean(), "reward": data["reward"].mean()}'
            )
        },
    },
    "graph_equinox": {
        "no all-reduce": {'jax.lax.psum((grads, loss, count), axis_name="device")': "(grads, loss, count)"},
        "mean of means": {
            'jax.lax.psum((grads, loss, count), axis_name="device")': (
                'jax.lax.psum((jax.tree.map(lambda g: g / count, grads), loss / count, 1), axis_name="device")'
            ),
        },
        "padding counts": {"losses.sum(), mask.sum()": "losses.sum(), mask.shape[0]"},
    },
    "accumulation": {
        "no all-reduce": {'loss, grads = lax.pmean((loss, grads), axis_name="batch")': "pass"},
        "sum in place of mean": {
            'lax.pmean((loss, grads), axis_name="batch")': 'lax.psum((loss, grads), axis_name="batch")'
        },
        "divided twice": {
            'loss, grads = lax.pmean((loss, grads), axis_name="batch")': (
                'loss, grads = jax.tree.map(lambda x: lax.pmean(x / 2, "batch"), (loss, grads))'
            )
        },
        "first micro-batch twice": {"lax.fori_loop(1, accum_steps": "lax.fori_loop(0, accum_steps - 1"},
        "clipped before the all-reduce": {
            'lax.pmean((loss, grads), axis_name="batch")': (
                'lax.pmean((loss, optax.clip_by_global_norm(0.1).update(grads, None)[0]), axis_name="batch")'
            )
        },
    },
    "mixup": {
        "no all-reduce": {'loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")': "pass"},
        "one key on all devices": {'jax.random.fold_in(rng_model, jax.lax.axis_index("batch"))': "rng_model"},
        "key stands still": {"rng, rng_model = jax.random.split(rng, 2)": "rng_model = jax.random.split(rng, 2)[1]"},
        "norm of one device": {
            "    loss, grads = jax.lax.pmean(": "    own = grads\n    loss, grads = jax.lax.pmean(",
            "norm(grads)": "norm(own)",
        },
        "sum in place of mean": {
            'jax.lax.pmean((loss, grads), axis_name="batch")': 'jax.lax.psum((loss, grads), axis_name="batch")'
        },
        "labels not mixed": {"rng_local, (images, labels) = mixup(": "rng_local, (images, _) = mixup("},
    },
    "linen_image": {
        "first example of each device dropped": {"return losses.mean(), logits": "return losses[1:].mean(), logits"},
        "no all-reduce": {'grads = pmean(grads, "batch")': "pass"},
        "sum in place of mean": {'grads = pmean(grads, "batch")': 'grads = psum(grads, "batch")'},
        "metrics of one device": {
            'pmean({"loss": loss, "accuracy": accuracy}, "batch")': '{"loss": loss, "accuracy": accuracy}'
        },
        "one mask on all devices": {
            'rngs={"dropout": dropout_key}': "rngs={\"dropout\": all_gather(dropout_key, 'batch')[0]}"
        },
    },
    "nnx_image": {
        "averaged twice": {
            'loss, grads = jax.lax.pmean((loss, grads), "data")': (
                'loss, grads = jax.tree.map(lambda x: jax.lax.pmean(x / 8, "data"), (loss, grads))'
            )
        },
        "no all-reduce": {'loss, grads = jax.lax.pmean((loss, grads), "data")': "pass"},
        "sum in place of mean": {'jax.lax.pmean((loss, grads), "data")': 'jax.lax.psum((loss, grads), "data")'},
        "loss of one device": {
            'loss, grads = jax.lax.pmean((loss, grads), "data")': 'grads = jax.lax.pmean(grads, "data")'
        },
    },
}
