// Every op of ops/ops.h, for the body of a class that has them all: a backend includes this file there.

void fill_normal(Tensor x, Tensor remainder, float deviation, uint64_t seed, uint64_t stream,
                 int64_t first) override;

void gemm(Matrix c, Matrix a, Matrix b, const GemmOptions& options) override;
void gemm_fp8(Matrix c, const QuantizedMatrix& a, const QuantizedMatrix& b,
              const GemmOptions& options) override;
void narrow_product(Matrix u, const QuantizedMatrix& x, Matrix w, bool transpose_w, float alpha) override;
void narrow_product_over_rows(Matrix g, const QuantizedMatrix& x, Matrix u, bool transpose_g, float alpha,
                              bool accumulate) override;
void transpose_fp8(const QuantizedMatrix& to, const QuantizedMatrix& from) override;
void dequantize(Tensor dense, const QuantizedMatrix& x) override;
void quantize(const Operand& operand) override;
void update_delayed_scales(const DelayedScaling& state) override;

void embedding_forward(Tensor x, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe) override;
void embedding_backward(Tensor dwte, Tensor dwpe, Tensor dx, Tensor tokens, Tensor positions) override;

void gather_rows(Tensor to, Tensor from, Tensor rows) override;
void scatter_rows(Tensor to, Tensor from, Tensor rows) override;
void add_scaled_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) override;
void add_to_rows(Tensor to, Tensor from, Tensor rows, Tensor factors) override;
void add_outer(Tensor to, Tensor column, Tensor row, float factor) override;
void shift_rows(Tensor to, Tensor row, Tensor targets, float factor) override;
void dropout(Tensor y, Tensor x, float probability, Tensor seed, uint64_t stream, bool accumulate) override;

void norm_forward(NormKind kind, const Operand& y, Tensor residual, Tensor mean, Tensor inv, Tensor x,
                  Tensor delta, Tensor gain, Tensor bias, float epsilon) override;
void norm_backward(NormKind kind, const Operand& dresidual, Tensor dgain, Tensor dbias, Tensor dy,
                   Tensor residual, Tensor mean, Tensor inv, Tensor gain) override;

void rope_forward(Tensor qkv, Tensor positions, Tensor table, const AttentionShape& shape) override;
void rope_backward(const Operand& dqkv, Tensor positions, Tensor table,
                   const AttentionShape& shape) override;
void qk_norm_forward(Tensor qkv, Tensor raw, Tensor inv, Tensor gain_q, Tensor gain_k, float epsilon,
                     const AttentionShape& shape) override;
void qk_norm_backward(const Operand& dqkv, Tensor dgain_q, Tensor dgain_k, Tensor raw, Tensor inv,
                      Tensor gain_q, Tensor gain_k, const AttentionShape& shape) override;
void attention_forward(const Operand& out, Tensor lse, Tensor qkv, const Documents& documents,
                       const AttentionShape& shape) override;
void attention_backward(Tensor dqkv, Tensor dout, Tensor qkv, Tensor out, Tensor lse,
                        const Documents& documents, const AttentionShape& shape) override;
void attention_decode(Tensor out, const KvCache& cache, Tensor qkv, Tensor sequences, Tensor positions,
                      int64_t longest, const AttentionShape& shape) override;

void activation_forward(Activation activation, const Operand& h, Tensor x) override;
void activation_backward(Activation activation, const Operand& dx, Tensor dh, Tensor x) override;

void cross_entropy(const Operand& gradient, Tensor correction, Tensor loss, Tensor penalty, Tensor correct,
                   Tensor logits, Tensor targets, const LossOptions& options) override;

void add_column_sum(Tensor column_sum, Tensor x, Tensor factors, float factor) override;
void sum(Tensor total, Tensor x) override;
void grad_norm(Tensor result, std::span<const Tensor> gradients, float max_norm, Tensor guard) override;
void adamw(std::span<const AdamWParameter> parameters, Tensor clip, const AdamWOptions& options) override;

void sum_parts(Tensor sum, Tensor parts, bool accumulate) override;
void convert(Tensor to, Tensor from) override;
void combine_norms(Tensor result, Tensor records, float max_norm) override;
void reciprocal_of_sum(Tensor scale, Tensor counts) override;
void merge_slots(Tensor slots, Tensor gathered) override;
void add_hash(Tensor hash, Tensor x, uint64_t seed) override;

void choose_tokens(Tensor ids, Tensor logits, int64_t vocab, Tensor choices) override;
