//! Mapped files that lose their pages under the reader.
//!
//! Touching a page that a file no longer has, or that its disk cannot read, raises `SIGBUS`, which ends the process. Here
//! a handler puts zeros where the pages were and marks the mapping as damaged: the reader goes on, and whoever uses what
//! it read asks for the mark before trusting it.
//!
//! A signal handler reaches nothing but statics, so the list of mappings is global: the one exception to the rule that
//! there is no global mutable state. It holds addresses and marks, and only this file changes it. The handler takes no
//! lock and allocates nothing.
//!
//! Windows refuses to shorten a mapped file, so only a disk or network that fails can take pages away there; that still
//! ends the process.

pub(crate) use platform::Watch;

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod platform {
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};

    use libc::{c_int, c_void, sigaction, siginfo_t};

    /// A mapping that is watched for as long as this value lives.
    pub(crate) struct Watch(&'static Place);

    impl Watch {
        /// Watches a mapping. It must go before the mapping does.
        pub(crate) fn new(bytes: &[u8]) -> Watch {
            install();
            Watch(Place::take(bytes.as_ptr() as usize, bytes.len()))
        }

        /// Whether pages of the mapping were missing when they were read.
        pub(crate) fn is_damaged(&self) -> bool {
            self.0.damaged.load(Ordering::Acquire)
        }

        /// Marks the mapping, because its file was found changed.
        pub(crate) fn mark_damaged(&self) {
            self.0.damaged.store(true, Ordering::Release);
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            self.0.write(0, 0);
            self.0.taken.store(false, Ordering::Release);
        }
    }

    /// The first place of the list of all mappings. Places are used again and never freed, so that the handler can walk
    /// the list at any time.
    static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());

    /// One mapping, or room for one.
    struct Place {
        /// Odd while start and length change.
        version: AtomicUsize,
        /// The address of the first byte; 0 if there is no mapping here.
        start: AtomicUsize,
        len: AtomicUsize,
        damaged: AtomicBool,
        /// Whether someone has this place.
        taken: AtomicBool,
        /// The next place; it stays the same once this one is in the list.
        next: AtomicPtr<Place>,
    }

    impl Place {
        /// A free place, or a new one, for a mapping.
        fn take(start: usize, len: usize) -> &'static Place {
            let free = |place: &&Place| {
                place.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            let place = places().find(free).unwrap_or_else(Place::add);
            place.damaged.store(false, Ordering::Relaxed);
            place.write(start, len);
            place
        }

        /// Another place in the list, which is the caller's.
        fn add() -> &'static Place {
            let place: &'static Place = Box::leak(Box::new(Place {
                version: AtomicUsize::new(0),
                start: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                damaged: AtomicBool::new(false),
                taken: AtomicBool::new(true),
                next: AtomicPtr::new(null_mut()),
            }));
            let mut first = PLACES.load(Ordering::Acquire);
            loop {
                place.next.store(first, Ordering::Relaxed);
                let new = std::ptr::from_ref(place).cast_mut();
                match PLACES.compare_exchange_weak(first, new, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => return place,
                    Err(other) => first = other,
                }
            }
        }

        /// Changes the mapping. Only who has the place does.
        fn write(&self, start: usize, len: usize) {
            let version = self.version.load(Ordering::Relaxed);
            self.version.store(version.wrapping_add(1), Ordering::Relaxed);
            fence(Ordering::Release);
            self.start.store(start, Ordering::Relaxed);
            self.len.store(len, Ordering::Relaxed);
            self.version.store(version.wrapping_add(2), Ordering::Release);
        }

        /// Start and length, unless they change at this moment. Those of a mapping that is being read do not.
        fn read(&self) -> Option<(usize, usize)> {
            let before = self.version.load(Ordering::Acquire);
            let found = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            let is_steady = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
            (is_steady && found.0 != 0).then_some(found)
        }
    }

    /// All places.
    fn places() -> impl Iterator<Item = &'static Place> {
        let at = |place: *mut Place| {
            // SAFETY: what the list points at was leaked, so it lives and stays where it is for good.
            unsafe { place.as_ref() }
        };
        let first = at(PLACES.load(Ordering::Acquire));
        std::iter::successors(first, move |place| at(place.next.load(Ordering::Relaxed)))
    }

    /// What the handler needs to know.
    struct Setup {
        page_bytes: usize,
        /// Who was asked before: Rust's own handler, which tells of a stack that is full.
        previous: sigaction,
    }

    static SETUP: OnceLock<Option<Setup>> = OnceLock::new();

    /// Installs the handler, once. A system that refuses it leaves files as dangerous as they are without one.
    fn install() {
        SETUP.get_or_init(|| {
            // SAFETY: all zeros are a valid value of this C structure.
            let mut previous: sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            let mut ours: sigaction = unsafe { std::mem::zeroed() };
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus_error;
            ours.sa_sigaction = handler as usize;
            // On the signal stack, because the handler before may be told of a full stack through this one.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: the pointers are to structures that live here, and the handler does only what handlers may.
            let is_installed = unsafe {
                libc::sigemptyset(&mut ours.sa_mask);
                sigaction(libc::SIGBUS, &ours, &mut previous) == 0
            };
            // SAFETY: it only asks for a number.
            let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let page_bytes = usize::try_from(page_bytes).ok().filter(|bytes| bytes.is_power_of_two())?;
            is_installed.then_some(Setup { page_bytes, previous })
        });
    }

    /// Mends a mapping of ours; any other fault is the business of the handler before.
    extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let setup = SETUP.get().and_then(Option::as_ref);
        // SAFETY: the system passes a valid structure, which for this signal has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        if let Some(setup) = setup
            && mend(address, setup.page_bytes)
        {
            return;
        }
        let previous = setup.map_or(libc::SIG_DFL, |setup| setup.previous.sa_sigaction);
        if previous == libc::SIG_DFL || previous == libc::SIG_IGN {
            // The access is made again after this returns, and then ends the process as it would have.
            // SAFETY: the structure is all zeros but for the default action, which is a valid one.
            unsafe {
                let mut default: sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                sigaction(signal, &default, null_mut());
            }
            return;
        }
        let takes_info = setup.is_some_and(|setup| setup.previous.sa_flags & libc::SA_SIGINFO != 0);
        // SAFETY: the address is that of a handler that the system would have called with these very arguments.
        unsafe {
            if takes_info {
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    std::mem::transmute(previous);
                handler(signal, info, context);
            } else {
                let handler: extern "C" fn(c_int) = std::mem::transmute(previous);
                handler(signal);
            }
        }
    }

    /// Puts zeros from the page of an address to the end of its mapping, if it is one of ours: where one page of a file
    /// is gone, mostly all behind it are, and each would be a fault and a mapping of its own.
    fn mend(address: usize, page_bytes: usize) -> bool {
        let holding = |place: &'static Place| {
            let (start, len) = place.read()?;
            (address.checked_sub(start)? < len).then_some((place, start + len))
        };
        let Some((place, end)) = places().find_map(holding) else { return false };
        // Before the zeros are there, so that nobody reads them unmarked.
        place.damaged.store(true, Ordering::SeqCst);
        let page = address / page_bytes * page_bytes;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is the rest of a mapping that is ours and that is being read now, so it exists; who reads it
        // takes any bytes. When the mapping goes, these pages go with it.
        let mapped = unsafe { libc::mmap(page as *mut c_void, end - page, libc::PROT_READ, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
mod platform {
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A mapping whose missing pages cannot be mended here; only what is found by asking for the file is marked.
    pub(crate) struct Watch(AtomicBool);

    impl Watch {
        pub(crate) fn new(_bytes: &[u8]) -> Watch {
            Watch(AtomicBool::new(false))
        }

        pub(crate) fn is_damaged(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }

        pub(crate) fn mark_damaged(&self) {
            self.0.store(true, Ordering::Release);
        }
    }
}
