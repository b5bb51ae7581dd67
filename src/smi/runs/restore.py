"""Build the method and the views of a configuration."""

from dataclasses import replace

import torch

from smi.config.schema import Config
from smi.imports import refused
from smi.methods import Method, create_method
from smi.nn import create_encoder
from smi.seeds import derive
from smi.views import Views, policy


def create(config: Config, num_images: int) -> Method:
    """The method with its encoder, as the seed has it: methods compared under one seed start from one encoder."""
    torch.manual_seed(derive(config.seed, "encoder"))
    encoder = create_encoder(**config.encoder, image_size=config.views.size)
    torch.manual_seed(derive(config.seed, "method"))
    settings = {name: value for name, value in config.method.items() if name != "name"}
    try:
        return create_method(config.method["name"], encoder, num_images=num_images, **settings)
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise refused(error, f"{config.method['name']} with these settings") from error


def create_views(config: Config, method: Method) -> Views:
    """As the configuration has them and the method wants them."""
    found = policy(config.views.policy, size=config.views.size)
    if config.views.solarize_p is not None:
        found = replace(found, views=tuple(replace(v, solarize_p=p) for v, p in zip(found.views, config.views.solarize_p, strict=True)))
    return Views(method.policy(found))
