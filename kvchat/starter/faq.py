"""The questions about KV caches and kvchat that the model answers."""

from __future__ import annotations

from kvchat.starter import cache_topics, kvchat_topics, model_topics, self_topics

TOPICS = (*self_topics.TOPICS, *kvchat_topics.TOPICS, *cache_topics.TOPICS, *model_topics.TOPICS)
