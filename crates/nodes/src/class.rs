//! The shape that most node classes share: a small struct that holds the runtime.

/// Declares a node class: its name, its category, its declaration from an empty schema, and what it does.
macro_rules! class {
    (
        $(#[$about:meta])*
        $name:ident in $category:literal;
        |$schema:ident| $declaration:expr;
        |$runtime:ident, $call:ident| $run:expr
    ) => {
        crate::class::class! {
            $(#[$about])*
            $name in $category;
            |_listed, $schema| $declaration;
            |$runtime, $call| $run
        }
    };
    // As above, for a name that Rust cannot write.
    (
        $(#[$about:meta])*
        $name:ident called $called:literal in $category:literal;
        |$schema:ident| $declaration:expr;
        |$runtime:ident, $call:ident| $run:expr
    ) => {
        crate::class::class! {
            $(#[$about])*
            $name as $called, in $category;
            |_listed, $schema| $declaration;
            |$runtime, $call| $run
        }
    };
    // As the first, for a declaration that lists what the runtime has.
    (
        $(#[$about:meta])*
        $name:ident in $category:literal;
        |$listed:ident, $schema:ident| $declaration:expr;
        |$runtime:ident, $call:ident| $run:expr
    ) => {
        crate::class::class! {
            $(#[$about])*
            $name as stringify!($name), in $category;
            |$listed, $schema| $declaration;
            |$runtime, $call| $run
        }
    };
    (
        $(#[$about:meta])*
        $name:ident as $called:expr, in $category:literal;
        |$listed:ident, $schema:ident| $declaration:expr;
        |$runtime:ident, $call:ident| $run:expr
    ) => {
        $(#[$about])*
        #[allow(non_camel_case_types, reason = "stored workflows know the class by this name")]
        struct $name(std::sync::Arc<runtime::Runtime>);

        impl graph::NodeClass for $name {
            fn schema(&self) -> graph::Schema {
                let $listed = &self.0;
                let $schema = graph::Schema::new($called, $category);
                $declaration
            }

            fn run(&self, $call: &graph::Call) -> Result<graph::Outcome, graph::Failure> {
                #[allow(unused_variables, reason = "many classes need nothing of it")]
                let $runtime = &self.0;
                $run
            }
        }
    };
}

pub(crate) use class;
