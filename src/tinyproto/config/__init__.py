"""Configs: YAML to checked settings, with presets for every open reading of the paper."""

from __future__ import annotations

from tinyproto.config.load import Config, load_config, parse_config

__all__ = ["Config", "load_config", "parse_config"]
