//! How busy and how warm a card is, by NVML: a part of the driver that some systems do not have. Without it nothing is told.

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::driver::Driver;
use crate::library;
use crate::raw::SensorFunctions;

/// What a card's sensors say; what a card does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sensors {
    /// The share of the last moment in which a kernel ran, in percent.
    pub busy_percent: Option<u32>,
    /// The temperature of the chip, in degrees Celsius.
    pub celsius: Option<u32>,
}

/// NVML's number of the sensor on the chip.
const CHIP: u32 = 0;

/// NVML's `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Utilization {
    gpu: u32,
    memory: u32,
}

/// One card as NVML knows it.
pub(crate) struct CardSensors {
    functions: SensorFunctions,
    /// Good as long as the process lives: NVML is never shut down.
    handle: *mut c_void,
}

// SAFETY: NVML may be called from any thread, and a handle is a name, not memory of ours.
unsafe impl Send for CardSensors {}
// SAFETY: as above; the functions change nothing.
unsafe impl Sync for CardSensors {}

impl CardSensors {
    /// The sensors of a card, if this machine has NVML and NVML knows the card.
    pub(crate) fn open(driver: &Driver, card: i32) -> Option<CardSensors> {
        let functions = library::load_sensors()?;
        let attribute = |which| driver.attribute(card, which).ok();
        // The two libraries count cards differently, so that only the place on the bus tells which is which.
        let place = address(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        );
        let place = CString::new(place).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: NVML was started by `load_sensors`; the text ends with a zero and `handle` takes a pointer.
        let status = unsafe { (functions.nvmlDeviceGetHandleByPciBusId_v2)(place.as_ptr(), &raw mut handle) };
        (status == 0 && !handle.is_null()).then_some(CardSensors { functions, handle })
    }

    pub(crate) fn read(&self) -> Sensors {
        let mut busy = MaybeUninit::<Utilization>::uninit();
        // SAFETY: the handle is NVML's own, and `busy` has the layout of what is written.
        let status =
            unsafe { (self.functions.nvmlDeviceGetUtilizationRates)(self.handle, busy.as_mut_ptr()) };
        // SAFETY: with status 0 it was written.
        let busy_percent = (status == 0).then(|| unsafe { busy.assume_init() }.gpu);
        let mut celsius = 0;
        // SAFETY: as above; `celsius` takes one number.
        let status =
            unsafe { (self.functions.nvmlDeviceGetTemperature)(self.handle, CHIP, &raw mut celsius) };
        Sensors { busy_percent, celsius: (status == 0).then_some(celsius) }
    }
}

/// `00000000:65:00.0`.
fn address(domain: i32, bus: i32, device: i32) -> String {
    format!("{domain:08x}:{bus:02x}:{device:02x}.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_by_its_place_on_the_bus() {
        assert_eq!(address(0, 0x65, 0), "00000000:65:00.0");
        assert_eq!(address(1, 10, 31), "00000001:0a:1f.0");
    }

    #[test]
    fn nvml_writes_two_numbers() {
        assert_eq!(size_of::<Utilization>(), 8);
        assert_eq!(std::mem::offset_of!(Utilization, memory), 4);
    }
}
