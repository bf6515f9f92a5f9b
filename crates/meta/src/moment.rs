//! Points in time as people write them: the one calendar.

use std::time::SystemTime;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// A date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(DateTime);

impl Moment {
    /// A time in UTC. One that no calendar has is the beginning of 1970.
    pub fn utc(time: SystemTime) -> Moment {
        let timestamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
        Moment(timestamp.to_zoned(TimeZone::UTC).datetime())
    }

    /// Now, in the time zone of this machine.
    pub fn local_now() -> Moment {
        Moment(Zoned::now().datetime())
    }

    /// The year.
    pub fn year(self) -> i16 {
        self.0.year()
    }

    /// The month, from 1.
    pub fn month(self) -> u8 {
        self.0.month().unsigned_abs()
    }

    /// The day of the month, from 1.
    pub fn day(self) -> u8 {
        self.0.day().unsigned_abs()
    }

    /// The hour, from 0.
    pub fn hour(self) -> u8 {
        self.0.hour().unsigned_abs()
    }

    /// The minute.
    pub fn minute(self) -> u8 {
        self.0.minute().unsigned_abs()
    }

    /// The second.
    pub fn second(self) -> u8 {
        self.0.second().unsigned_abs()
    }

    /// `2026-11-15`.
    pub fn date(self) -> String {
        format!("{:04}-{:02}-{:02}", self.year(), self.month(), self.day())
    }

    /// `2026-11-15T16:40:00.123456`, with so many digits of the second's fraction.
    pub fn to_text(self, digits: usize) -> String {
        let (hour, minute, second) = (self.hour(), self.minute(), self.second());
        let fraction = format!("{:09}", self.0.subsec_nanosecond());
        let fraction = &fraction[..digits.min(fraction.len())];
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{}T{hour:02}:{minute:02}:{second:02}{point}{fraction}", self.date())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_are_calendar_dates() {
        let at = |seconds: u64| Moment::utc(UNIX_EPOCH + Duration::from_secs(seconds)).to_text(0);
        assert_eq!(at(0), "1970-01-01T00:00:00");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59");
        assert_eq!(at(951_826_599), "2000-02-29T12:16:39");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59");
        assert_eq!(at(1_794_761_999), "2026-11-15T16:59:59");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00");
    }

    #[test]
    fn fractions_are_cut_and_not_rounded() {
        let moment = Moment::utc(UNIX_EPOCH + Duration::from_nanos(1_999_999_999));
        assert_eq!(moment.to_text(3), "1970-01-01T00:00:01.999");
        assert_eq!(moment.to_text(6), "1970-01-01T00:00:01.999999");
        assert_eq!(moment.to_text(20), "1970-01-01T00:00:01.999999999");
        assert_eq!(moment.date(), "1970-01-01");
    }

    #[test]
    fn now_is_after_this_was_written() {
        assert!(Moment::local_now().year() >= 2026);
        assert!(Moment::utc(SystemTime::now()).year() >= 2026);
        let far = UNIX_EPOCH.checked_add(Duration::from_secs(1 << 40));
        assert!(far.is_none_or(|far| Moment::utc(far).year() == 1970), "no calendar has it");
    }
}
