"""Build the method and the views of a configuration, or load those of a run.

method = load_method(Run("runs/mine"))
views = load_views(run, method)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from smi.config.schema import Config
from smi.config.schema import Views as ViewSettings
from smi.imports import refused
from smi.methods import Method, create_method
from smi.nn import create_encoder
from smi.runs.checkpoint import does_not_fit
from smi.runs.run import Run
from smi.seeds import derive
from smi.views import Views, policy
from smi.views.policies import Policy


def build_method(
    config: Config, num_images: int, weights: Mapping[str, Tensor] | None = None
) -> Method:
    """Build the method and its encoder from the seed.

    Methods that are compared under one seed start from the same encoder.
    weights: of the encoder's network, to start from.
    """
    torch.manual_seed(derive(config.seed, "encoder"))
    encoder = create_encoder(**config.encoder, image_size=config.views.size)
    if weights is not None:
        encoder.network.load_state_dict(weights)
    encoder.keep_statistics = config.init.source is not None and config.init.statistics == "keep"
    encoder.train()
    torch.manual_seed(derive(config.seed, "method"))
    settings = {name: value for name, value in config.method.items() if name != "name"}
    try:
        return create_method(config.method["name"], encoder, num_images=num_images, **settings)
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise refused(error, f"{config.method['name']} with these settings") from error


def build_views(config: Config, method: Method) -> Views:
    """Build the views of the configuration, with the changes that the method makes to them."""
    return Views(method.policy(policy_of(config.views)))


def policy_of(settings: ViewSettings) -> Policy:
    """Return the policy that the settings name, with the changes that they make to it."""
    recipe = policy(settings.policy, size=settings.size)
    for name in ("solarize_p", "blur_p"):
        if (probabilities := getattr(settings, name)) is not None:
            pairs = zip(recipe.views, probabilities, strict=True)
            views = tuple(replace(view, **{name: p}) for view, p in pairs)
            recipe = replace(recipe, views=views)
    recipe = replace(recipe, mean=settings.mean or recipe.mean, std=settings.std or recipe.std)
    if settings.interpolation is not None:
        views = tuple(replace(v, interpolation=settings.interpolation) for v in recipe.views)
        recipe = replace(recipe, views=views)
    return recipe


def load_method(
    run: Run,
    *,
    device: torch.device | str | None = None,
    state: Mapping[str, Any] | None = None,
) -> Method:
    """Rebuild the method of a run with the weights of its last checkpoint.

    method = load_method(Run("runs/mine"), device="cuda")

    state: a checkpoint that is loaded already; None loads the last one.
    """
    method = build_method(run.resolve(), run.facts.num_images or 1)
    try:
        method.load_state_dict((run.state() if state is None else state)["method"])
    except RuntimeError as error:
        raise does_not_fit(run.checkpoint, error) from error
    return method if device is None else method.to(device)


def load_views(run: Run, method: Method) -> Views:
    """Rebuild the views that a run was trained with."""
    return build_views(run.resolve(), method)
