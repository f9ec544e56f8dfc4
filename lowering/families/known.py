"""Fields that configs of all families carry, and what they may say without changing the model."""

Neutral = tuple[tuple[str, tuple[object, ...]], ...]
"""Fields, and the values besides null with which they ask for nothing."""

# What these say does not change what the decoder computes.
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels",
    "_sliding_window_pattern", "architectures", "attention_dropout", "attn_implementation",
    "audio_config", "audio_token_id", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "boa_token_id", "boi_token_id", "boi_token_index",
    "cache_implementation", "chunk_size_feed_forward", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
    "eoa_token_id", "eoa_token_index", "eoi_token_id", "eoi_token_index",
    "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "hidden_act", "id2label", "image_token_id",
    "image_token_index", "initializer_range", "is_decoder", "label2id", "length_penalty",
    "max_length", "min_length", "mm_tokens_per_image", "model_type", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version", "use_cache",
    "video_token_id", "vision_config", "vision_soft_tokens_per_image",
})  # fmt: skip

# Off in every decoder: set to anything else they would change its form.
OFF: Neutral = (
    ("add_cross_attention", (False,)),
    ("cross_attention_hidden_size", (0,)),
    ("is_encoder_decoder", (False,)),
    ("pruned_heads", ({},)),
    ("tie_encoder_decoder", (False,)),
    ("use_bfloat16", (False,)),
)

# What these ask for has no lowering in any family yet: biases, experts, packed weights.
DENSE: Neutral = (
    ("attention_bias", (False,)),
    ("enable_moe_block", (False,)),
    ("mlp_bias", (False,)),
    ("moe_intermediate_size", (0,)),
    ("n_routed_experts", (0,)),
    ("num_experts", (0,)),
    ("num_experts_per_tok", (0,)),
    ("num_local_experts", (0,)),
    ("partial_rotary_factor", (1,)),
    ("quantization", ()),
    ("quantization_config", ()),
)
