"""Computes GNMT in numpy, one example, one step and one cell at a time, without any code of gnmt/.

All functions are analytic, so that a step of 1e-30 i gives a derivative to the last digit.
"""

import numpy as np

BOS = 1


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x)
    return e / e.sum()


class Lstm:
    def __init__(self, layer, value):
        self.kernel, self.recurrent, self.bias = (
            value(v) for v in (layer.kernel, layer.recurrent_kernel, layer.bias)
        )

    def start(self):
        zeros = np.zeros(self.recurrent.shape[0])
        return zeros, zeros

    def step(self, x, state):
        h, c = state
        i, f, g, o = np.split(x @ self.kernel + h @ self.recurrent + self.bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    def run(self, xs):
        state, out = self.start(), []
        for x in xs:
            state = self.step(x, state)
            out.append(state[0])
        return out


class Transcription:
    """The network in numpy; `value` returns a variable's values, and may change one of them."""

    def __init__(self, network, value):
        self.google = network.config.wiring == "google"
        encoder, decoder = network.encoder, network.decoder
        self.table = value(network.embedding.table)
        self.ahead, self.back = Lstm(encoder.forward, value), Lstm(encoder.backward, value)
        self.readers = [Lstm(layer, value) for layer in encoder.lstms]
        self.writers = [Lstm(layer, value) for layer in [decoder.first, *decoder.lstms]]
        a = decoder.attention
        self.of_query, self.of_memory = value(a.query_kernel), value(a.memory_kernel)
        self.v, self.g, self.b = value(a.direction), value(a.scale), value(a.bias)
        self.kernel = value(network.softmax.kernel)
        self.bias = 0 if network.softmax.bias is None else value(network.softmax.bias)

    def encode(self, source):
        xs = [self.table[t] for t in source]
        backwards = self.back.run(xs[::-1])[::-1]
        xs = [np.concatenate(both) for both in zip(self.ahead.run(xs), backwards)]
        xs = self.readers[0].run(xs)
        for reader in self.readers[1:]:
            xs = [x + y for x, y in zip(xs, reader.run(xs))]
        return xs

    def attend(self, query, memory):
        norm = np.sqrt((self.v * self.v).sum())
        scores = [
            (self.g * self.v / norm) @ np.tanh(query @ self.of_query + m @ self.of_memory + self.b)
            for m in memory
        ]
        weights = softmax(np.array(scores))
        return sum(w * m for w, m in zip(weights, memory)), weights

    def start(self):
        return [w.start() for w in self.writers], np.zeros(self.of_query.shape[0])

    def write(self, token, state, memory):
        """(logits of the next token, the state, attention) after one more token."""
        states, context = state
        x = self.table[token]
        if self.google:
            x = np.concatenate([x, context])
        after = [self.writers[0].step(x, states[0])]
        x = after[0][0]
        context, weights = self.attend(x, memory)
        for i, (writer, state) in enumerate(zip(self.writers[1:], states[1:])):
            after.append(writer.step(np.concatenate([x, context]), state))
            x = after[-1][0] + (x if i else 0)
        return x @ self.kernel + self.bias, (after, context), weights

    def logits(self, source, target):
        memory, state, out = self.encode(source), self.start(), []
        for token in [BOS, *target[:-1]]:
            logits, state, _ = self.write(token, state, memory)
            out.append(logits)
        return np.array(out)

    def loss(self, batch, smoothing):
        """The loss summed over all tokens of the real sentences, EOS included, divided by the number of sentences."""
        total = 0
        for source, m, target, n, weight in zip(
            *(batch[k] for k in ("source", "source_length", "target", "target_length", "weight"))
        ):
            if not weight:
                continue
            for logits, label in zip(self.logits(source[:m], target[:n]), target[:n]):
                log_p = np.log(softmax(logits))
                total -= (1 - smoothing) * log_p[label] + smoothing * log_p.mean()
        return total / batch["weight"].sum()
