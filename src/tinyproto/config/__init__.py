"""Configs: checked settings from YAML, with presets for the open points of the paper."""

from __future__ import annotations

from tinyproto.config.load import Config, load_config, parse_config

__all__ = ["Config", "load_config", "parse_config"]
