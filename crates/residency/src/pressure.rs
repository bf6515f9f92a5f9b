//! When host memory is nearly full and nothing runs, cached node outputs are worth less than room.

/// Decides when to reset the executor. It fires once when use passes the threshold, and again only
/// after use has fallen by the hysteresis below it.
#[derive(Clone, Copy, Debug)]
pub struct HostPressure {
    threshold: f64,
    hysteresis: f64,
    armed: bool,
}

impl Default for HostPressure {
    /// 85 %, with 5 points of hysteresis.
    fn default() -> HostPressure {
        HostPressure::new(0.85, 0.05)
    }
}

impl HostPressure {
    /// Fractions of the host's memory.
    pub fn new(threshold: f64, hysteresis: f64) -> HostPressure {
        HostPressure { threshold, hysteresis, armed: true }
    }

    /// Tells the fraction in use and whether the queue is idle; answers whether to reset now.
    pub fn update(&mut self, used_fraction: f64, idle: bool) -> bool {
        if used_fraction < self.threshold - self.hysteresis {
            self.armed = true;
        }
        let fire = self.armed && idle && used_fraction >= self.threshold;
        if fire {
            self.armed = false;
        }
        fire
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_once_above_the_threshold_and_again_after_falling_below_the_hysteresis() {
        let mut pressure = HostPressure::default();
        let answers = [0.5, 0.86, 0.9, 0.82, 0.87, 0.79, 0.84, 0.85].map(|used| pressure.update(used, true));
        assert_eq!(answers, [false, true, false, false, false, false, false, true]);
    }

    #[test]
    fn waits_for_an_idle_queue() {
        let mut pressure = HostPressure::default();
        assert!(!pressure.update(0.95, false));
        assert!(pressure.update(0.95, true));
    }
}
