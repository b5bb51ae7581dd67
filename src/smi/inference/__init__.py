"""Use a pretrained encoder: embed images, find neighbours, export it to other libraries."""
