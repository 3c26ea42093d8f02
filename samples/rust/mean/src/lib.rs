//! mean: every query gets the mean of the values it sees, the newer ones weighted more if asked; samples/hello_plugin in Rust.
use attnkit_plugin::{plugin, About, Block, Choice, Cost, Gradient, Head, Mechanism, Port, Ports, Real, Refusal, Request, Step, Values};

struct Mean {
    block: Block,
    decay: f64,
    v: Port,
    o: Port,
}

impl Mechanism for Mean {
    const GRADIENTS: bool = true;

    fn about() -> About {
        About {
            name: "mean",
            summary: "the mean of the values: the smallest mechanism that streams",
            citation: "none, a sample of attnkit",
            state_revision: "1",
        }
    }

    fn options() -> Vec<Choice> {
        vec![Choice::real("decay", 1.0, 0.0, 1.0, "weight of a value relative to the next newer one")]
    }

    fn new(block: &Block, values: &Values<'_>, ports: &mut Ports) -> Result<Self, Refusal> {
        let v = ports.key("v", block.value_width, "values");
        let o = ports.output("o", block.value_width, "mean of the values");
        Ok(Mean { block: *block, decay: (values.real(0) as f32).into(), v, o })
    }

    fn plan(&self, request: &Request, cost: &mut Cost) -> Result<(), Refusal> {
        self.block.check_sight(request)?;
        let e = self.block.value_width;
        cost.state = e + 1; // the weighted sum of the values, then of 1
        cost.flops = request.batch()
            * self.block.heads as u64
            * (request.keys() * 2 * (e as u64 + 1) + request.queries() * e as u64);
        Ok(())
    }

    fn head<T: Real>(&self, head: &mut Head<'_, T>) {
        let decay = T::of(self.decay);
        let (sum, weight) = head.state.split_at_mut(self.block.value_width);
        for step in head.sight.steps(head.streams) {
            match step {
                Step::Append(keys) => {
                    for j in keys {
                        for (sum, &value) in sum.iter_mut().zip(head.inputs.row(self.v, j)) {
                            *sum = decay * *sum + value;
                        }
                        weight[0] = decay * weight[0] + T::of(1.0);
                    }
                }
                Step::Read(i) => {
                    for (mean, &sum) in head.output.row(i).iter_mut().zip(sum.iter()) {
                        *mean = sum / weight[0];
                    }
                }
            }
        }
    }

    // dv_j = decay dv_(j+1) + sum_i do_i / sum of i's weights, over the queries i whose newest key is j.
    fn gradient<T: Real>(&self, gradient: &mut Gradient<'_, T>) {
        let (decay, sight, e) = (self.decay, gradient.sight, self.block.value_width);
        let mut left = sight.queries;
        for j in (0..sight.fresh).rev() {
            let n = (j + 1) as f64;
            let weights = if decay == 1.0 { n } else { (1.0 - decay.powf(n)) / (1.0 - decay) };
            for c in 0..e {
                let newer = if j + 1 < sight.fresh { gradient.row(self.v, j + 1).map_or(T::default(), |row| row[c]) } else { T::default() };
                if let Some(row) = gradient.row(self.v, j) {
                    row[c] = T::of(decay) * newer;
                }
            }
            while left > 0 && sight.seen(left - 1) == j + 1 {
                left -= 1;
                let given = gradient.given.row(self.o, left);
                if let Some(row) = gradient.row(self.v, j) {
                    for (value, &given) in row.iter_mut().zip(given) {
                        *value += T::of(given.double() / weights);
                    }
                }
            }
        }
    }
}

plugin!(Mean);
