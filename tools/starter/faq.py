"""The questions about KV caches and kvchat that the model answers."""

from __future__ import annotations

from dataclasses import replace

from tools.starter import cache_topics, kvchat_topics, model_topics, self_topics
from tools.starter.phrases import further_forms

TOPICS = tuple(
    replace(topic, forms=(*topic.forms, *further_forms()[topic.name]))
    for topic in (*self_topics.TOPICS, *kvchat_topics.TOPICS, *cache_topics.TOPICS, *model_topics.TOPICS)
)
